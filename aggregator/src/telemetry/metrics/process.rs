//! Metrics of the process itself, by the names that Prometheus clients share, and the version of the program.
//!
//! They are read from `/proc` at each scrape, and are absent on systems other than Linux.

use crate::telemetry::build::{REVISION, RUST_VERSION, VERSION};
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::Registry;

/// Adds `weir_build_info`, and on Linux the `process_*` metrics.
pub fn register(registry: &mut Registry) {
    let build = [("version", VERSION), ("revision", REVISION), ("rust_version", RUST_VERSION)];
    registry.register(
        "weir_build",
        "Version, commit and compiler of this program",
        Info::new(build.to_vec()),
    );
    #[cfg(target_os = "linux")]
    registry.register_collector(Box::new(linux::Process));
}

#[cfg(target_os = "linux")]
mod linux {
    use prometheus_client::collector::Collector;
    use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
    use prometheus_client::metrics::counter::ConstCounter;
    use prometheus_client::metrics::gauge::ConstGauge;
    use std::fmt;

    #[derive(Debug)]
    pub struct Process;

    /// What one scrape reports of this process.
    struct Reading {
        cpu_seconds: f64,
        resident_bytes: u64,
        virtual_bytes: u64,
        start_seconds: f64,
        threads: i64,
        open_files: usize,
        max_files: Option<u64>,
    }

    impl Reading {
        fn take() -> procfs::ProcResult<Reading> {
            let process = procfs::process::Process::myself()?;
            let stat = process.stat()?;
            let ticks = procfs::ticks_per_second() as f64;
            let max_files = match process.limits()?.max_open_files.soft_limit {
                procfs::process::LimitValue::Value(most) => Some(most),
                procfs::process::LimitValue::Unlimited => None,
            };
            Ok(Reading {
                cpu_seconds: (stat.utime + stat.stime) as f64 / ticks,
                resident_bytes: stat.rss * procfs::page_size(),
                virtual_bytes: stat.vsize,
                start_seconds: procfs::boot_time_secs()? as f64 + stat.starttime as f64 / ticks,
                threads: stat.num_threads,
                open_files: process.fd_count()?,
                max_files,
            })
        }
    }

    impl Collector for Process {
        fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
            // A scrape reports what can be read; a process without `/proc` has no such metrics.
            let Ok(now) = Reading::take() else { return Ok(()) };
            let mut put = |name: &str, help: &str, metric: &dyn Metric| metric.put(&mut encoder, name, help);
            put(
                "process_cpu_seconds",
                "CPU time used, user and system",
                &ConstCounter::new(now.cpu_seconds),
            )?;
            put("process_resident_memory_bytes", "Memory in RAM", &ConstGauge::new(now.resident_bytes))?;
            put("process_virtual_memory_bytes", "Address space", &ConstGauge::new(now.virtual_bytes))?;
            put("process_start_time_seconds", "Unix time of the start", &ConstGauge::new(now.start_seconds))?;
            put("process_threads", "Threads", &ConstGauge::new(now.threads))?;
            put("process_open_fds", "Open file descriptors", &ConstGauge::new(now.open_files as u64))?;
            if let Some(most) = now.max_files {
                put("process_max_fds", "Most open file descriptors allowed", &ConstGauge::new(most))?;
            }
            Ok(())
        }
    }

    trait Metric {
        fn put(&self, encoder: &mut DescriptorEncoder<'_>, name: &str, help: &str) -> Result<(), fmt::Error>;
    }

    impl<T: EncodeMetric> Metric for T {
        fn put(&self, encoder: &mut DescriptorEncoder<'_>, name: &str, help: &str) -> Result<(), fmt::Error> {
            self.encode(encoder.encode_descriptor(name, help, None, self.metric_type())?)
        }
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn this_process_has_memory_files_and_a_start_in_the_past() {
            let now = Reading::take().unwrap();
            assert!(now.resident_bytes > 1 << 20 && now.virtual_bytes >= now.resident_bytes);
            assert!(now.open_files > 0 && now.threads > 0 && now.max_files > Some(now.open_files as u64));
            assert!(now.start_seconds > 1e9);
        }
    }
}
