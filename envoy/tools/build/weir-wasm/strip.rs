//! Prepares a compiled filter for Envoy: chooses its exports, checks its imports, drops what only debuggers read.
//!
//! Envoy calls every callback that a module exports, and each call costs a crossing into the VM. The SDK's
//! dispatcher exports them all, so a filter exports the callbacks that it wants as `weir_<x>`; here those become
//! `proxy_<x>` and the dispatcher's own are dropped. The code behind them stays in the module and is never called.

use std::collections::BTreeSet;
use std::ops::Range;

use anyhow::{Context, Result, bail, ensure};
use wasm_encoder::{ExportKind, ExportSection, Module, RawSection};
use wasmparser::{ExternalKind, Parser, Payload, TypeRef};

/// What Envoy needs of a module besides its callbacks.
const ALWAYS_KEPT: [&str; 6] =
    ["memory", "_initialize", "_start", "malloc", "proxy_on_memory_allocate", "proxy_abi_version_0_2_1"];

/// Precedes `yes` or `no ` in the data of a module: whether it receives responses.
const RESPONSES_MARKER: &[u8] = b"weir:on_response_headers=";
/// The callbacks that only modules with responses need: for their headers, and for costs that wait for them.
const RESPONSES_CALLBACKS: [&str; 3] = ["weir_on_response_headers", "weir_on_log", "weir_on_done"];

/// Which callbacks stay.
pub enum Callbacks {
    /// Those exported as `weir_<x>`, under the name `proxy_<x>`.
    Prefixed,
    /// The same without those for responses, which spares each request three crossings. The module's marker states it.
    WithoutResponses,
    /// Those named here, under the names that they have.
    Named(BTreeSet<String>),
}

/// A module ready for Envoy.
#[derive(Debug)]
pub struct Stripped {
    pub module: Vec<u8>,
    pub exports: Vec<String>,
}

/// Rewrites `module` so that it exports only `callbacks` and what Envoy always needs.
pub fn strip(module: &[u8], callbacks: &Callbacks) -> Result<Stripped> {
    let mut output = Module::new();
    let mut exports = Vec::new();
    for payload in Parser::new(0).parse_all(module) {
        match payload.context("the module is not valid WASM")? {
            Payload::ImportSection(imports) => {
                check_imports(imports.clone())?;
                copy_section(&mut output, module, 2, imports.range())?;
            }
            Payload::ExportSection(section) => {
                let chosen = choose_exports(section, callbacks)?;
                output.section(&encode_exports(&chosen)?);
                exports = chosen.into_iter().map(|export| export.name).collect();
            }
            Payload::CustomSection(_) => {}
            other => {
                if let Some((id, range)) = other.as_section() {
                    copy_section(&mut output, module, id, range)?;
                }
            }
        }
    }
    let mut module = output.finish();
    if let Callbacks::WithoutResponses = callbacks {
        deny_responses(&mut module)?;
    }
    wasmparser::validate(&module).context("the rewritten module is not valid")?;
    Ok(Stripped { module, exports })
}

struct Export {
    name: String,
    kind: ExternalKind,
    index: u32,
}

fn choose_exports(
    section: wasmparser::ExportSectionReader<'_>,
    callbacks: &Callbacks,
) -> Result<Vec<Export>> {
    let all = section.into_iter().collect::<Result<Vec<_>, _>>()?;
    let mut chosen: Vec<Export> = Vec::new();
    // Prefixed ones first: a filter may replace even what is always kept.
    for export in &all {
        let name = match callbacks {
            Callbacks::WithoutResponses if RESPONSES_CALLBACKS.contains(&export.name) => None,
            Callbacks::Prefixed | Callbacks::WithoutResponses => {
                export.name.strip_prefix("weir_").map(|rest| format!("proxy_{rest}"))
            }
            Callbacks::Named(names) => names.get(export.name).cloned(),
        };
        if let (Some(name), ExternalKind::Func) = (name, export.kind) {
            chosen.push(Export { name, kind: export.kind, index: export.index });
        }
    }
    match callbacks {
        Callbacks::Prefixed | Callbacks::WithoutResponses => {
            ensure!(!chosen.is_empty(), "the module exports no callback as weir_<name>")
        }
        Callbacks::Named(names) => {
            if let Some(missing) = names.iter().find(|name| chosen.iter().all(|export| export.name != **name))
            {
                bail!("the module does not export {missing}");
            }
        }
    }
    for export in &all {
        // A filter that brings its own allocator must not export another, which Envoy would prefer.
        let second_allocator = export.name == "malloc" && !matches!(callbacks, Callbacks::Named(_));
        if ALWAYS_KEPT.contains(&export.name)
            && !second_allocator
            && chosen.iter().all(|other| other.name != export.name)
        {
            chosen.push(Export { name: export.name.to_owned(), kind: export.kind, index: export.index });
        }
    }
    Ok(chosen)
}

fn encode_exports(exports: &[Export]) -> Result<ExportSection> {
    let mut section = ExportSection::new();
    for export in exports {
        let kind = match export.kind {
            ExternalKind::Func => ExportKind::Func,
            ExternalKind::Memory => ExportKind::Memory,
            other => bail!("{} is exported as {other:?}", export.name),
        };
        section.export(&export.name, kind, export.index);
    }
    Ok(section)
}

/// Turns the marker's `yes` into `no `.
fn deny_responses(module: &mut [u8]) -> Result<()> {
    let marked = [RESPONSES_MARKER, b"yes"].concat();
    let places: Vec<usize> =
        module.windows(marked.len()).enumerate().filter(|(_, w)| *w == marked).map(|(at, _)| at).collect();
    let [at] = places[..] else {
        bail!("the module names {:?} {} times", String::from_utf8_lossy(&marked), places.len())
    };
    let answer = at + RESPONSES_MARKER.len();
    module[answer..answer + 3].copy_from_slice(b"no ");
    Ok(())
}

/// Envoy links only its own functions and WASI's: anything else would fail to load, much later.
fn check_imports(imports: wasmparser::ImportSectionReader<'_>) -> Result<()> {
    let mut foreign = Vec::new();
    for import in imports.into_imports() {
        let import = import?;
        let known = match import.module {
            "env" => import.name.starts_with("proxy_"),
            "wasi_snapshot_preview1" => true,
            _ => false,
        };
        if !(known && matches!(import.ty, TypeRef::Func(_))) {
            foreign.push(format!("{}.{}", import.module, import.name));
        }
    }
    ensure!(foreign.is_empty(), "the module imports what Envoy does not offer: {}", foreign.join(", "));
    Ok(())
}

fn copy_section(output: &mut Module, module: &[u8], id: u8, range: Range<u64>) -> Result<()> {
    let bytes = usize::try_from(range.start)?..usize::try_from(range.end)?;
    let data = module.get(bytes).context("a section ends after the module")?;
    output.section(&RawSection { id, data });
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use wasm_encoder::{
        CodeSection, CustomSection, EntityType, Function, FunctionSection, ImportSection, MemorySection,
        MemoryType, TypeSection,
    };

    /// One imported function (index 0), and a function for each name in `exported` (from index 1).
    fn module(import: (&str, &str), exported: &[&str]) -> Vec<u8> {
        let mut types = TypeSection::new();
        types.ty().function([], []);
        let mut imports = ImportSection::new();
        imports.import(import.0, import.1, EntityType::Function(0));
        let mut functions = FunctionSection::new();
        let mut exports = ExportSection::new();
        let mut code = CodeSection::new();
        for (index, name) in (1..).zip(exported) {
            functions.function(0);
            exports.export(name, ExportKind::Func, index);
            let mut body = Function::new([]);
            body.instructions().end();
            code.function(&body);
        }
        let mut memories = MemorySection::new();
        memories.memory(MemoryType {
            minimum: 1,
            maximum: None,
            memory64: false,
            shared: false,
            page_size_log2: None,
        });
        exports.export("memory", ExportKind::Memory, 0);
        let mut module = Module::new();
        module.section(&types).section(&imports).section(&functions).section(&memories).section(&exports);
        module.section(&code).section(&CustomSection { name: "name".into(), data: (&[0_u8][..]).into() });
        module.finish()
    }

    fn exports_of(module: &[u8]) -> Vec<(String, u32)> {
        let mut found = Vec::new();
        for payload in Parser::new(0).parse_all(module) {
            match payload.unwrap() {
                Payload::ExportSection(section) => {
                    found.extend(
                        section.into_iter().map(|e| e.unwrap()).map(|e| (e.name.to_owned(), e.index)),
                    );
                }
                Payload::CustomSection(section) => panic!("custom section {} was kept", section.name()),
                _ => {}
            }
        }
        found.sort();
        found
    }

    #[track_caller]
    fn check(exported: &[&str], callbacks: &Callbacks, expected: &[(&str, u32)]) {
        let stripped = strip(&module(("env", "proxy_log"), exported), callbacks).unwrap();
        let expected: Vec<_> = expected.iter().map(|(name, index)| ((*name).to_owned(), *index)).collect();
        assert_eq!(exports_of(&stripped.module), expected);
    }

    fn named(names: &[&str]) -> Callbacks {
        Callbacks::Named(names.iter().map(|name| (*name).to_owned()).collect())
    }

    #[test]
    fn prefixed_callbacks_replace_the_dispatchers() {
        let exported =
            ["proxy_on_log", "proxy_on_tick", "weir_on_tick", "proxy_abi_version_0_2_1", "_initialize", "x"];
        let expected =
            [("_initialize", 5), ("memory", 0), ("proxy_abi_version_0_2_1", 4), ("proxy_on_tick", 3)];
        check(&exported, &Callbacks::Prefixed, &expected);
    }

    #[test]
    fn a_prefixed_allocator_replaces_the_sdks() {
        let exported = ["proxy_on_memory_allocate", "weir_on_memory_allocate"];
        check(&exported, &Callbacks::Prefixed, &[("memory", 0), ("proxy_on_memory_allocate", 2)]);
    }

    #[test]
    fn named_callbacks_stay_and_the_others_go() {
        check(
            &["proxy_on_log", "proxy_on_tick"],
            &named(&["proxy_on_tick"]),
            &[("memory", 0), ("proxy_on_tick", 2)],
        );
    }

    #[track_caller]
    fn check_refused(import: (&str, &str), exported: &[&str], callbacks: &Callbacks, expected: &str) {
        let error = strip(&module(import, exported), callbacks).unwrap_err();
        assert!(error.to_string().contains(expected), "{error:#}");
    }

    #[test]
    fn what_envoy_cannot_run_is_refused_by_name() {
        let good = ("env", "proxy_log");
        check_refused(("env", "abort"), &["weir_on_tick"], &Callbacks::Prefixed, "env.abort");
        check_refused(("wbg", "proxy_log"), &["weir_on_tick"], &Callbacks::Prefixed, "wbg.proxy_log");
        check_refused(good, &["proxy_on_tick"], &Callbacks::Prefixed, "weir_<name>");
        check_refused(good, &["proxy_on_tick"], &named(&["proxy_on_log"]), "proxy_on_log");
        let error = strip(b"no wasm at all", &Callbacks::Prefixed).unwrap_err();
        assert!(error.to_string().contains("not valid WASM"), "{error:#}");
    }

    #[test]
    fn the_marker_states_that_a_module_receives_no_responses() {
        let exported = ["weir_on_tick", "weir_on_response_headers", "weir_on_log", "weir_on_done"];
        let mut marked = module(("env", "proxy_log"), &exported);
        let text = b"\x01mweir:on_response_headers=yes";
        // A passive data segment is enough for the search.
        marked.extend([0x0b, u8::try_from(text.len() + 2).unwrap(), 1]);
        marked.extend([1, u8::try_from(text.len() - 1).unwrap()]);
        marked.extend(&text[1..]);
        let error = strip(&module(("env", "proxy_log"), &["weir_on_tick"]), &Callbacks::WithoutResponses)
            .unwrap_err();
        assert!(error.to_string().contains("0 times"), "{error:#}");
        let stripped = strip(&marked, &Callbacks::WithoutResponses).unwrap();
        assert_eq!(exports_of(&stripped.module), [("memory".to_owned(), 0), ("proxy_on_tick".to_owned(), 1)]);
        let contains = |text: &[u8]| stripped.module.windows(text.len()).any(|window| window == text);
        assert!(contains(b"weir:on_response_headers=no ") && !contains(b"weir:on_response_headers=yes"));
    }

    #[test]
    fn wasi_is_offered() {
        let module = module(("wasi_snapshot_preview1", "fd_write"), &["weir_on_tick"]);
        assert!(strip(&module, &Callbacks::Prefixed).is_ok());
    }
}
