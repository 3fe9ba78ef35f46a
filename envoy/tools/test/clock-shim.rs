//! A library for LD_PRELOAD that moves the wall clock of a process by as many nanoseconds as the file that
//! `WEIR_CLOCK_FILE` names holds now, a native i64. Monotonic clocks are left alone. Compiled by itself, for tests.
//!
//! Not libfaketime: that allocates in its first `clock_gettime`, and Envoy's allocator reads the clock in its first
//! allocation. Here nothing allocates.
#![deny(unsafe_op_in_unsafe_fn)]

use std::ffi::{c_char, c_int, c_long, c_void};
use std::ptr::{self, null_mut};
use std::sync::atomic::{AtomicI64, AtomicPtr, Ordering};

const NANOS: i64 = 1_000_000_000;
const CLOCK_REALTIME: c_int = 0;
const CLOCK_REALTIME_COARSE: c_int = 5;
const PROT_READ: c_int = 1;
const MAP_SHARED: c_int = 1;
#[cfg(target_arch = "x86_64")]
const SYS_CLOCK_GETTIME: c_long = 228;
#[cfg(target_arch = "aarch64")]
const SYS_CLOCK_GETTIME: c_long = 113;

#[repr(C)]
#[derive(Default)]
pub struct Timespec {
    seconds: i64,
    nanos: i64,
}

#[repr(C)]
pub struct Timeval {
    seconds: i64,
    micros: i64,
}

unsafe extern "C" {
    fn getenv(name: *const c_char) -> *const c_char;
    fn open(path: *const c_char, flags: c_int, ...) -> c_int;
    fn close(file: c_int) -> c_int;
    fn mmap(
        at: *mut c_void,
        size: usize,
        protection: c_int,
        flags: c_int,
        file: c_int,
        offset: c_long,
    ) -> *mut c_void;
    fn syscall(number: c_long, ...) -> c_long;
}

/// # Safety
/// As the C library's function of this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn clock_gettime(clock: c_int, out: *mut Timespec) -> c_int {
    // SAFETY: the caller's pointer goes to the kernel, and is written to only when the kernel found it good.
    unsafe {
        let result = syscall(SYS_CLOCK_GETTIME, clock, out);
        if result == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE) {
            let moved = (*out).seconds * NANOS + (*out).nanos + offset_nanos();
            *out = Timespec { seconds: moved.div_euclid(NANOS), nanos: moved.rem_euclid(NANOS) };
        }
        result as c_int
    }
}

/// # Safety
/// As the C library's function of this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gettimeofday(out: *mut Timeval, _zone: *mut c_void) -> c_int {
    let now = now();
    if !out.is_null() {
        // SAFETY: the caller passes a valid pointer.
        unsafe { *out = Timeval { seconds: now.seconds, micros: now.nanos / 1_000 } };
    }
    0
}

/// # Safety
/// As the C library's function of this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn time(out: *mut i64) -> i64 {
    let now = now();
    if !out.is_null() {
        // SAFETY: the caller passes a valid pointer.
        unsafe { *out = now.seconds };
    }
    now.seconds
}

fn now() -> Timespec {
    let mut now = Timespec::default();
    // SAFETY: the pointer is to a local value.
    unsafe { clock_gettime(CLOCK_REALTIME, ptr::from_mut(&mut now)) };
    now
}

/// The file's mapping. Two threads that make it at once leave one mapping unused, which does no harm.
static MAPPING: AtomicPtr<AtomicI64> = AtomicPtr::new(null_mut());

fn offset_nanos() -> i64 {
    let mut mapping = MAPPING.load(Ordering::Acquire);
    if mapping.is_null() {
        mapping = map();
        MAPPING.store(mapping, Ordering::Release);
    }
    // SAFETY: a mapping is never removed, and its file holds at least eight bytes.
    unsafe { mapping.as_ref() }.map_or(0, |offset| offset.load(Ordering::Relaxed))
}

fn map() -> *mut AtomicI64 {
    // SAFETY: the strings end with zero, and what is returned is checked before it is used.
    unsafe {
        let path = getenv(c"WEIR_CLOCK_FILE".as_ptr());
        if path.is_null() {
            return null_mut();
        }
        let file = open(path, 0);
        if file < 0 {
            return null_mut();
        }
        let mapping = mmap(null_mut(), size_of::<i64>(), PROT_READ, MAP_SHARED, file, 0);
        close(file);
        if mapping.addr() == usize::MAX { null_mut() } else { mapping.cast() }
    }
}
