//! The settings of the rate-limit service.

use super::config::Domains;
use super::xds::XdsOptions;
use std::path::PathBuf;

/// Where the limits come from, and how calls are answered. Without a source the service has no limits and allows every request.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// A file of limits, or a folder of them.
    pub files: Option<PathBuf>,
    /// A server of limits, in place of files.
    pub xds: Option<XdsOptions>,
    /// Whether several files or resources may name one domain.
    pub domains: Domains,
    /// How calls are answered.
    pub answering: Answering,
}

/// How calls are answered.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Answering {
    /// Every limit is in shadow mode.
    pub shadow_mode: bool,
    /// Every limit is a quota.
    pub quota_mode: bool,
    /// Whether responses have `dynamic_metadata`.
    pub dynamic_metadata: bool,
    /// The names of headers for the limit, what remains, and the seconds until the window's end.
    pub response_headers: Option<[String; 3]>,
    /// The name of a header for the upstream of a request that passes although limits are exceeded, which it names.
    pub exceeded_header: Option<String>,
}
