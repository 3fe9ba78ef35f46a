//! `weir-simulate`: runs scenarios of the simulator and reports their results.
//!
//! This program has the arguments, the threads, the wall clock and the files; the simulation itself is in the
//! library.

mod jobs;

use anyhow::{Context, Result, bail};
use clap::Parser;
use jobs::{Job, in_order};
use std::hash::{BuildHasher, RandomState};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};
use weir_simulator::accuracy;
use weir_simulator::control;
use weir_simulator::measure::observe::NoObserver;
use weir_simulator::plan::Plan;
use weir_simulator::plan::traffic::{Shape, Traffic};
use weir_simulator::report::trail::Trail;
use weir_simulator::report::{self, Row};
use weir_simulator::run::shrink::shrink;
use weir_simulator::run::{Expected, run};
use weir_simulator::scenarios::link;
use weir_simulator::scenarios::{self, Scenario};
use weir_simulator::traffic::{arrivals, trace};

/// How many failures are shrunk; further ones are only reported.
const SHRUNK_MAX: usize = 3;
/// Most runs for shrinking one failure.
const SHRINK_RUNS: usize = 80;
/// Most events that are printed of a shrunk failure.
const TRAIL: usize = 40;

/// Simulate Weir in one deterministic process and check its invariants.
#[derive(Debug, Parser)]
#[command(name = "weir-simulate")]
struct Args {
    /// Seed of all random choices; random if not given.
    #[arg(long)]
    seed: Option<u64>,
    /// Scenario to run, or `all` for every scenario except the long ones [default: all; `random` with --for]
    #[arg(long)]
    scenario: Option<String>,
    /// Number of seeds to run, counting up from --seed.
    #[arg(long, default_value_t = 1)]
    runs: u64,
    /// Run a plan from a JSON file instead of a scenario.
    #[arg(long, conflicts_with = "scenario")]
    plan: Option<PathBuf>,
    /// Replace the plan's traffic by the arrivals of a trace file.
    #[arg(long)]
    trace: Option<PathBuf>,
    /// Write the arrivals of the plan to a trace file instead of running the plan.
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,
    /// Print the plan as JSON instead of running it.
    #[arg(long)]
    show: bool,
    /// Continue with further seeds for this many seconds of wall time.
    #[arg(long = "for", value_name = "SECONDS")]
    budget: Option<u64>,
    /// List the scenarios.
    #[arg(long)]
    list: bool,
    /// Print one line of JSON for each run; the table goes to standard error.
    #[arg(long)]
    json: bool,
    /// Measure the error of Weir's limits without faults, and print it as Markdown.
    #[arg(long)]
    accuracy: bool,
    /// With --accuracy: print every cell of the grid.
    #[arg(long, requires = "accuracy")]
    full: bool,
    /// Simulate live control: worlds of operators, restarts and set-back databases.
    #[arg(long, conflicts_with_all = ["scenario", "plan", "accuracy", "trace", "record", "show", "budget"])]
    control: bool,
    /// Directory to which shrunk plans are written.
    #[arg(long, value_name = "DIRECTORY", default_value = "target/simulate")]
    out: PathBuf,
}

fn main() -> ExitCode {
    let args = Args::parse();
    // A panic of a run is reported as one of its failures, and shrinking repeats it often.
    std::panic::set_hook(Box::new(|_| {}));
    match simulate(&args) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(error) => {
            eprintln!("weir-simulate: {error:#}");
            ExitCode::from(2)
        }
    }
}

/// Whether all runs passed.
fn simulate(args: &Args) -> Result<bool> {
    if args.list {
        print(&list())?;
        return Ok(true);
    }
    let seed = args.seed.unwrap_or_else(|| RandomState::new().hash_one(0) >> 32);
    print(&format!("seed {seed}\n"))?;
    if args.accuracy {
        return measure(seed, args.full);
    }
    if args.control {
        return simulate_control(seed, args.runs);
    }
    let source = Source::of(args)?;
    if args.show || args.record.is_some() {
        return show_or_record(&source, seed, args);
    }
    let rows = carry_out(&source, seed, args)?;
    if args.json {
        for row in &rows {
            print(&format!("{}\n", serde_json::to_string(row)?))?;
        }
        eprint!("{}", report::table(&rows));
    } else {
        print(&report::table(&rows))?;
    }
    report_failures(&source, &rows, args)?;
    Ok(rows.iter().all(Row::has_passed))
}

/// Simulates live control in as many worlds; whether all of them passed.
fn simulate_control(seed: u64, runs: u64) -> Result<bool> {
    let (mut changes, mut bans, mut checks, mut faults, mut failed) = (0, 0, 0, 0, 0);
    for seed in (seed..).take(usize::try_from(runs)?) {
        let outcome = control::run(seed);
        changes += outcome.changes;
        bans += outcome.bans;
        checks += outcome.checks;
        faults += outcome.faults;
        if let Some(violation) = outcome.violation {
            failed += 1;
            print(&format!("seed {seed} fails: {violation}\n\nrepeat with --control --seed {seed}\n\n"))?;
        }
    }
    print(&format!(
        "{runs} worlds of live control: {changes} changes, {bans} bans by rules, {faults} faults, {checks} checks, \
         {failed} failed\n"
    ))?;
    Ok(failed == 0)
}

/// The source of the plans.
enum Source {
    Scenarios(Vec<Scenario>, Option<Traffic>),
    File(String, Box<Plan>),
}

impl Source {
    fn of(args: &Args) -> Result<Source> {
        let read = |path: &Path| std::fs::read_to_string(path).with_context(|| path.display().to_string());
        let trace = match &args.trace {
            Some(path) => {
                let arrivals = trace::read(&read(path)?).with_context(|| path.display().to_string())?;
                let shape = Shape::Trace { arrivals };
                Some(Traffic { from_ms: 0, until_ms: None, rules: 0, cost: (1, 1), at: Vec::new(), shape })
            }
            None => None,
        };
        if let Some(path) = &args.plan {
            let mut plan: Plan =
                serde_json::from_str(&read(path)?).with_context(|| path.display().to_string())?;
            plan.traffic = trace.map_or(plan.traffic, |trace| vec![trace]);
            return Ok(Source::File(path.display().to_string(), Box::new(plan)));
        }
        let default = if args.budget.is_some() { scenarios::RANDOM.name } else { "all" };
        let name = args.scenario.as_deref().unwrap_or(default);
        let chosen = if name == "all" {
            scenarios::all().filter(|scenario| !scenario.long).collect()
        } else {
            vec![scenarios::find(name).with_context(|| format!("there is no scenario {name}; see --list"))?]
        };
        Ok(Source::Scenarios(chosen, trace))
    }

    /// The runs for a seed. A plan from a file has its own seed.
    fn jobs(&self, seed: u64) -> Vec<Job> {
        match self {
            Source::File(name, plan) => {
                let expected = Expected::default();
                vec![Job { name: name.clone(), plan: (**plan).clone(), expected }]
            }
            Source::Scenarios(chosen, trace) => chosen
                .iter()
                .map(|scenario| {
                    let mut plan = (scenario.plan)(seed);
                    let expected = (scenario.expected)(&plan);
                    plan.traffic = trace.clone().map_or(plan.traffic, |trace| vec![trace]);
                    Job { name: scenario.name.to_owned(), plan, expected }
                })
                .collect(),
        }
    }
}

fn carry_out(source: &Source, seed: u64, args: &Args) -> Result<Vec<Row>> {
    let mut jobs: Vec<Job> = Vec::new();
    let begun = Instant::now();
    let runs = if matches!(source, Source::File(..)) { 1 } else { args.runs.max(1) };
    (0..runs).for_each(|run| jobs.extend(source.jobs(seed.wrapping_add(run))));
    let mut rows = in_order(&jobs, Job::run);
    let Some(budget) = args.budget.map(Duration::from_secs) else { return Ok(rows) };
    if matches!(source, Source::File(..)) {
        bail!("--for runs further seeds, but the plan of --plan has one seed; leave out --for");
    }
    // Eight at a time, so that no thread is idle for long at the end.
    let mut next = runs;
    while begun.elapsed() < budget {
        let some: Vec<Job> = (next..next + 8).flat_map(|run| source.jobs(seed.wrapping_add(run))).collect();
        next += 8;
        let until = budget;
        rows.extend(
            in_order(&some, |job| (begun.elapsed() < until).then(|| job.run())).into_iter().flatten(),
        );
    }
    Ok(rows)
}

/// Reports each failure, and shrinks the first few.
fn report_failures(source: &Source, rows: &[Row], args: &Args) -> Result<()> {
    let mut shrunk = 0;
    for row in rows.iter().filter(|row| !row.has_passed()) {
        let (repeat, fragment) = repeat_and_fragment(source, row);
        let mut text = report::failure(row, &repeat, &fragment);
        // An expectation applies to the scenario as it is; a smaller plan may miss it without being wrong.
        let broken =
            row.outcome.failures.iter().find(|failure| failure.at_ms.is_some() || failure.checker == "panic");
        if let Some(failure) = broken.filter(|_| shrunk < SHRUNK_MAX)
            && let Some(job) = job_of(source, row)
        {
            shrunk += 1;
            text.push_str(&smallest(&job, &failure.checker, &args.out)?);
        }
        eprint!("{text}");
    }
    Ok(())
}

/// The arguments of `./justw simulate` that repeat a run, and the fragment of the playground's link that shows it.
fn repeat_and_fragment(source: &Source, row: &Row) -> (String, String) {
    let named = format!("--scenario {} --seed {}", row.scenario, row.seed);
    match source {
        Source::File(name, plan) => (format!("--plan {name}"), link::of_plan(plan)),
        Source::Scenarios(_, None) => (named, link::of_scenario(&row.scenario, row.seed)),
        // With the arrivals of a trace, the plan differs from the scenario's.
        Source::Scenarios(..) => {
            (named, job_of(source, row).map_or_else(String::new, |job| link::of_plan(&job.plan)))
        }
    }
}

/// The run that a row of the table describes.
fn job_of(source: &Source, row: &Row) -> Option<Job> {
    source.jobs(row.seed).into_iter().find(|job| job.name == row.scenario)
}

/// Shrinks a failing run, writes the plan, and describes the last events before the failure.
fn smallest(job: &Job, checker: &str, out: &Path) -> Result<String> {
    let failure = |plan: &Plan| {
        let outcome = run(plan, &Expected::default(), &mut NoObserver);
        outcome.failures.into_iter().find(|failure| failure.checker == checker)
    };
    let shrunk = shrink(&job.plan, SHRINK_RUNS, |plan| failure(plan).is_some());
    let Some(last) = failure(&shrunk.plan) else {
        return Ok("  the failure did not occur again when the run was repeated\n".to_owned());
    };
    let mut trail = Trail::new(last.at_ms, report::identifier(&last), TRAIL);
    run(&shrunk.plan, &Expected::default(), &mut trail);
    let name = job.name.replace(|c: char| !c.is_ascii_alphanumeric(), "-");
    let path = out.join(format!("{name}-{}.json", job.plan.seed));
    std::fs::create_dir_all(out).with_context(|| out.display().to_string())?;
    std::fs::write(&path, serde_json::to_string_pretty(&shrunk.plan)?)
        .with_context(|| path.display().to_string())?;
    Ok(report::shrunk(&shrunk.plan, shrunk.runs, &last, &trail, &format!("--plan {}", path.display())))
}

/// Prints plans or records their arrivals, instead of running them.
fn show_or_record(source: &Source, seed: u64, args: &Args) -> Result<bool> {
    let jobs = source.jobs(seed);
    if let Some(path) = &args.record {
        let [job] = &jobs[..] else {
            bail!(
                "--record writes the arrivals of one plan; name one scenario with --scenario, or use --plan"
            )
        };
        let all: Vec<_> = arrivals(&job.plan).collect();
        std::fs::write(path, trace::write(&all)).with_context(|| path.display().to_string())?;
    }
    for job in jobs.iter().filter(|_| args.show) {
        print(&format!("{}\n", serde_json::to_string_pretty(&job.plan)?))?;
    }
    Ok(true)
}

fn measure(seed: u64, full: bool) -> Result<bool> {
    let cells = in_order(&accuracy::cases(), |case| accuracy::measure(case, seed));
    print(&if full { accuracy::full_table(&cells) } else { accuracy::table(&cells) })?;
    let runs = in_order(&accuracy::ZIPF_ENVOYS, |envoys| {
        let outcome = run(&accuracy::zipf_plan(*envoys, seed), &Expected::default(), &mut NoObserver);
        (*envoys, outcome.comparison)
    });
    print(&format!("\n{}", accuracy::zipf_table(&runs)))?;
    Ok(cells.iter().all(|cell| !cell.failed))
}

fn list() -> String {
    let width = scenarios::all().map(|scenario| scenario.name.len()).max().unwrap_or(0);
    let line = |scenario: Scenario| {
        let long = if scenario.long { " (long: runs only if named)" } else { "" };
        format!("{:<width$}  {}{long}\n", scenario.name, scenario.description)
    };
    scenarios::all().map(line).collect()
}

/// A reader such as `head` may close the pipe early; that is an error to return, not a panic.
fn print(text: &str) -> Result<()> {
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).context("cannot write to standard output")
}
