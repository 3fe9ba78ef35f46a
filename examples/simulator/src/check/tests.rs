//! Checkers that cannot fail are none: each is shown what it must not like.
