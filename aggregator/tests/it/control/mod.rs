//! Live control: from a change to what filters and APIs obey.

mod controls;
mod controls_exact;
mod controls_rls;
mod controls_unread;
