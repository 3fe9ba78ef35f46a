//! `weir-pages FOLDER`: serves a folder of static files to this machine until it is stopped. The work is [`weir_envoy::Pages`].

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use anyhow::Result;
use clap::Parser;
use weir_envoy::Pages;

/// Serve a folder of static files.
#[derive(Parser)]
struct Options {
    /// The folder.
    folder: PathBuf,
    /// At this port; 0 is any that is free.
    #[arg(long, default_value_t = 7081)]
    port: u16,
    /// At this address.
    #[arg(long, default_value_t = IpAddr::V4(Ipv4Addr::LOCALHOST))]
    address: IpAddr,
}

#[tokio::main]
async fn main() -> Result<()> {
    let Options { folder, port, address } = Options::parse();
    let pages = Pages::start(&folder, SocketAddr::new(address, port)).await?;
    println!("http://{}/", pages.address());
    tokio::signal::ctrl_c().await?;
    Ok(())
}
