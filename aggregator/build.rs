//! Builds again when a migration is added: the macro that embeds them only sees those it has seen.

fn main() {
    println!("cargo::rerun-if-changed=../migrations");
}
