//! The entry of the native filter, a dynamic module of Envoy: Envoy calls `hooks`, which run the plugins of a worker's `slots`.
//!
//! ```text
//! request  worker's thread   hooks → slots → plugins, and the effect at once
//! message  main thread       hooks → streams → slots → plugins → requests that waited: their workers
//! tick     module's thread   ticker → slots → plugins → jobs: the main thread (installed)
//! ```
//! A panic ends no thread and no request: a slot begins its plugins anew, and the request passes.

mod frames;
mod hooks;
mod installed;
mod slots;
mod streams;
mod ticker;
mod wake;

#[cfg(test)]
mod fake;
#[cfg(test)]
mod tests;
