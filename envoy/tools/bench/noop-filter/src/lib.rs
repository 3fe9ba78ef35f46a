//! Reads one header and lets the request pass: what the benchmark compares Weir with. It decides nothing.

use proxy_wasm::hostcalls;
use proxy_wasm::traits::{Context, HttpContext};
use proxy_wasm::types::{Action, MapType};

proxy_wasm::main! {{
    proxy_wasm::set_http_context(|_, _| -> Box<dyn HttpContext> { Box::new(Noop) });
}}

struct Noop;

impl Context for Noop {}

impl HttpContext for Noop {
    fn on_http_request_headers(&mut self, _headers: usize, _end_of_stream: bool) -> Action {
        let key = hostcalls::get_map_value_bytes(MapType::HttpRequestHeaders, "x-api-key");
        std::hint::black_box(&key);
        Action::Continue
    }
}
