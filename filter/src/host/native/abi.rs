//! The C interface of Envoy's dynamic modules, as far as the filter uses it, and the two functions of the C library that it needs.
//!
//! Source: `source/extensions/dynamic_modules/abi/abi.h` of Envoy 1.40. A module of an interface works with the Envoy of that one and of the
//! next. If Envoy lacks a function, it does not load the module; a function whose arguments have changed is not noticed, so each new version
//! of the interface is read.

use std::ffi::{c_int, c_void};

/// The version of the interface for which the module was made.
pub const VERSION: &std::ffi::CStr = c"v0.2.0";

/// An object of Envoy: a request's filter, a configuration, or a scheduler.
pub type Object = *mut c_void;

/// Bytes of Envoy or of the module.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Bytes {
    data: *const u8,
    length: usize,
}

/// A header of Envoy or of the module.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Pair {
    name: *const u8,
    name_length: usize,
    value: *const u8,
    value_length: usize,
}

impl Bytes {
    /// No bytes.
    pub const NONE: Bytes = Bytes { data: std::ptr::null(), length: 0 };

    /// Bytes of the module.
    pub fn of(bytes: &[u8]) -> Bytes {
        Bytes { data: bytes.as_ptr(), length: bytes.len() }
    }

    /// The bytes.
    ///
    /// # Safety
    /// They are valid for `'a`.
    pub unsafe fn get<'a>(self) -> &'a [u8] {
        match self.data.is_null() || self.length == 0 {
            true => &[],
            // SAFETY: the caller's.
            false => unsafe { std::slice::from_raw_parts(self.data, self.length) },
        }
    }
}

impl Pair {
    /// A header of the module.
    pub fn of(name: &[u8], value: &[u8]) -> Pair {
        Pair {
            name: name.as_ptr(),
            name_length: name.len(),
            value: value.as_ptr(),
            value_length: value.len(),
        }
    }

    /// Its name.
    ///
    /// # Safety
    /// The header is valid for `'a`.
    pub unsafe fn name<'a>(&self) -> &'a [u8] {
        // SAFETY: the caller's.
        unsafe { Bytes { data: self.name, length: self.name_length }.get() }
    }

    /// Its value.
    ///
    /// # Safety
    /// The header is valid for `'a`.
    pub unsafe fn value<'a>(&self) -> &'a [u8] {
        // SAFETY: the caller's.
        unsafe { Bytes { data: self.value, length: self.value_length }.get() }
    }
}

/// Of which message headers are.
#[derive(Clone, Copy, Debug)]
#[repr(u32)]
pub enum Map {
    Request = 0,
    Response = 2,
    ResponseTrailers = 3,
}

/// Metadata of the request, not of its route or cluster.
pub const DYNAMIC: u32 = 0;

macro_rules! callbacks {
    ($($name:ident = $symbol:literal ($($argument:ty),*) $(-> $result:ty)?;)*) => {
        unsafe extern "C" {
            $(
                #[link_name = concat!("envoy_dynamic_module_callback_", $symbol)]
                pub fn $name($(_: $argument),*) $(-> $result)?;
            )*
        }
    };
}

callbacks! {
    log = "log"(u32, Bytes);
    concurrency = "get_concurrency"() -> u32;
    is_validation_mode = "is_validation_mode"() -> bool;
    headers_size = "http_get_headers_size"(Object, Map) -> usize;
    headers = "http_get_headers"(Object, Map, *mut Pair) -> bool;
    add_header = "http_add_header"(Object, Map, Bytes, Bytes) -> bool;
    send_response = "http_send_response"(Object, u32, *const Pair, usize, Bytes, Bytes);
    attribute_text = "http_filter_get_attribute_string"(Object, u32, *mut Bytes) -> bool;
    attribute_number = "http_filter_get_attribute_int"(Object, u32, *mut u64) -> bool;
    metadata_text = "http_get_metadata_string"(Object, u32, Bytes, Bytes, *mut Bytes) -> bool;
    metadata_number = "http_get_metadata_number"(Object, u32, Bytes, Bytes, *mut f64) -> bool;
    metadata_bool = "http_get_metadata_bool"(Object, u32, Bytes, Bytes, *mut bool) -> bool;
    metadata_namespaces_count = "http_get_metadata_namespaces_count"(Object, u32) -> usize;
    metadata_namespaces = "http_get_metadata_namespaces"(Object, u32, *mut Bytes) -> bool;
    metadata_keys_count = "http_get_metadata_keys_count"(Object, u32, Bytes) -> usize;
    metadata_keys = "http_get_metadata_keys"(Object, u32, Bytes, *mut Bytes) -> bool;
    metadata_list_size = "http_get_metadata_list_size"(Object, u32, Bytes, Bytes, *mut usize) -> bool;
    metadata_list_text = "http_get_metadata_list_string"(Object, u32, Bytes, Bytes, usize, *mut Bytes) -> bool;
    metadata_list_number = "http_get_metadata_list_number"(Object, u32, Bytes, Bytes, usize, *mut f64) -> bool;
    metadata_list_bool = "http_get_metadata_list_bool"(Object, u32, Bytes, Bytes, usize, *mut bool) -> bool;
    filter_state = "http_get_filter_state_bytes"(Object, Bytes, *mut Bytes) -> bool;
    filter_state_typed = "http_get_filter_state_typed"(Object, Bytes, *mut Bytes) -> bool;
    set_filter_state = "http_set_filter_state_bytes"(Object, Bytes, Bytes) -> bool;
    continue_decoding = "http_filter_continue_decoding"(Object);
    worker_index = "http_filter_get_worker_index"(Object) -> u32;
    scheduler_new = "http_filter_scheduler_new"(Object) -> Object;
    scheduler_commit = "http_filter_scheduler_commit"(Object, u64);
    scheduler_delete = "http_filter_scheduler_delete"(Object);
    config_scheduler_new = "http_filter_config_scheduler_new"(Object) -> Object;
    config_scheduler_commit = "http_filter_config_scheduler_commit"(Object, u64);
    config_scheduler_delete = "http_filter_config_scheduler_delete"(Object);
    define_counter = "http_filter_config_define_counter"(Object, Bytes, *const Bytes, usize, *mut usize) -> u32;
    define_gauge = "http_filter_config_define_gauge"(Object, Bytes, *const Bytes, usize, *mut usize) -> u32;
    increment_counter = "http_filter_config_increment_counter"(Object, usize, *const Bytes, usize, u64) -> u32;
    increment_gauge = "http_filter_config_increment_gauge"(Object, usize, *const Bytes, usize, u64) -> u32;
    decrement_gauge = "http_filter_config_decrement_gauge"(Object, usize, *const Bytes, usize, u64) -> u32;
    set_gauge = "http_filter_config_set_gauge"(Object, usize, *const Bytes, usize, u64) -> u32;
    start_stream = "http_filter_config_start_http_stream"(Object, *mut u64, Bytes, *const Pair, usize, Bytes, bool, u64) -> u32;
    send_data = "http_filter_config_stream_send_data"(Object, u64, Bytes, bool) -> bool;
    reset_stream = "http_filter_config_reset_http_stream"(Object, u64);
}

unsafe extern "C" {
    /// Random bytes of the operating system; from 256 bytes down always all of them.
    pub fn getrandom(bytes: *mut u8, length: usize, flags: u32) -> isize;
    /// The time of a clock since its start, in seconds and nanoseconds.
    pub fn clock_gettime(clock: c_int, time: *mut [i64; 2]) -> c_int;
}
