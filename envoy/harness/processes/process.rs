//! A child process that cannot outlive the scenario: it is killed when dropped, and by the kernel when its parent dies.
//!
//! Signals are sent to the child's process id alone. The kernel's signal is tied to the *thread* that spawned the
//! child, so a child must not be spawned from a short-lived thread (such as one of `spawn_blocking`).

use std::fs::File;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, getpid, getppid, kill_process, set_parent_process_death_signal};

use crate::processes::wait;

const TAIL_LINES: usize = 40;
const PAUSE_TIMEOUT: Duration = Duration::from_secs(5);

/// A running program whose output goes to a file.
pub struct Process {
    name: String,
    child: Child,
    log: PathBuf,
}

impl Process {
    /// Starts `command`, with its output appended to `<folder>/<name>.log`.
    pub fn spawn(name: &str, mut command: Command, folder: &Path) -> Result<Self> {
        let log = folder.join(format!("{name}.log"));
        let output = File::options().create(true).append(true).open(&log)?;
        let parent = getpid();
        command.stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output).process_group(0);
        // SAFETY: only prctl and getppid run between fork and exec; both are async-signal-safe.
        unsafe {
            command.pre_exec(move || {
                set_parent_process_death_signal(Some(Signal::KILL))?;
                if getppid() == Some(parent) { Ok(()) } else { Err(std::io::ErrorKind::BrokenPipe.into()) }
            });
        }
        let program = command.get_program().to_owned();
        let child = command.spawn().with_context(|| format!("starting {}", program.display()))?;
        Ok(Self { name: name.to_owned(), child, log })
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn log(&self) -> &Path {
        &self.log
    }

    /// Its exit status, if it has ended.
    pub fn ended(&mut self) -> Result<Option<ExitStatus>> {
        Ok(self.child.try_wait()?)
    }

    /// Stops it with SIGSTOP: its sockets stay open, and it answers nothing. Returns once its last thread has stopped.
    pub async fn pause(&self) -> Result<()> {
        self.signal(Signal::STOP)?;
        wait::until_some("every thread stops", PAUSE_TIMEOUT, async || Ok(self.is_paused()?.then_some(())))
            .await
    }

    /// Continues it after [`Process::pause`].
    pub fn resume(&self) -> Result<()> {
        self.signal(Signal::CONT)
    }

    /// Kills it with SIGKILL and waits until it has ended.
    pub fn kill(&mut self) -> Result<()> {
        if self.ended()?.is_none() {
            self.child.kill()?;
            self.child.wait()?;
        }
        Ok(())
    }

    /// Sends SIGTERM and waits until it has ended. If that takes longer than `timeout`, kills it and returns an error.
    pub async fn terminate(&mut self, timeout: Duration) -> Result<ExitStatus> {
        if let Some(status) = self.ended()? {
            return Ok(status);
        }
        self.signal(Signal::TERM)?;
        let child = &mut self.child;
        let ended = wait::until_some("the process ends", timeout, async || Ok(child.try_wait()?)).await;
        if ended.is_err() {
            self.kill()?;
        }
        ended.with_context(|| format!("{} ignored SIGTERM. {}", self.name, self.tail()))
    }

    /// Waits until `condition` holds. If the process ends first, fails at once with the end of its log.
    pub async fn wait_for(
        &mut self,
        what: &str,
        timeout: Duration,
        mut condition: impl AsyncFnMut() -> bool,
    ) -> Result<()> {
        let waited = wait::until_some(what, timeout, async || {
            if let Some(status) = self.ended()? {
                bail!("it ended with {status}");
            }
            Ok(condition().await.then_some(()))
        })
        .await;
        waited.with_context(|| format!("{} does not get there. {}", self.name, self.tail()))
    }

    /// The last lines of its log, for an error message.
    pub fn tail(&self) -> String {
        let text = std::fs::read(&self.log).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let lines: Vec<_> = text.lines().collect();
        let last = lines.get(lines.len().saturating_sub(TAIL_LINES)..).unwrap_or_default().join("\n");
        format!("The end of {}:\n{last}", self.log.display())
    }

    /// Resident memory in bytes.
    pub fn resident_bytes(&self) -> Result<u64> {
        let status = self.proc_file("status")?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("no VmRSS")?;
        let kib: u64 = line.trim().trim_end_matches("kB").trim().parse()?;
        Ok(kib * 1024)
    }

    /// CPU time of its threads, in user mode and in the kernel.
    pub fn cpu_time(&self) -> Result<Duration> {
        let stat = self.proc_file("stat")?;
        // The second field is the program's name in parentheses, which may contain spaces; utime and stime are fields
        // 14 and 15.
        let (_, fields) = stat.rsplit_once(") ").context("no name in stat")?;
        let ticks: u64 = fields.split(' ').skip(11).take(2).map(str::parse::<u64>).sum::<Result<_, _>>()?;
        Ok(Duration::from_micros(ticks * 1_000_000 / rustix::param::clock_ticks_per_second()))
    }

    /// CPU time of the threads that live, more exact than [`Self::cpu_time`].
    pub fn threads_cpu_time(&self) -> Result<Duration> {
        threads_cpu_time(self.pid())
    }

    fn is_paused(&self) -> Result<bool> {
        for task in std::fs::read_dir(format!("/proc/{}/task", self.pid()))? {
            // A thread has ended since the listing. It counts as running; the next listing will not contain it.
            let Ok(stat) = std::fs::read_to_string(task?.path().join("stat")) else { return Ok(false) };
            // The state follows the thread's name, which may contain spaces.
            if !stat.rsplit_once(") ").is_some_and(|(_, fields)| fields.starts_with('T')) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn signal(&self, signal: Signal) -> Result<()> {
        let pid = Pid::from_child(&self.child);
        kill_process(pid, signal).with_context(|| format!("sending {signal:?} to {}", self.name))
    }

    fn proc_file(&self, file: &str) -> Result<String> {
        let path = format!("/proc/{}/{file}", self.child.id());
        std::fs::read_to_string(&path).with_context(|| format!("reading {path}"))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}", self.tail());
        }
        // Errors mean that the process has ended already or cannot be reaped; both are ignored.
        let _ = self.kill();
    }
}

/// CPU time of the threads of a process that live, in user mode and in the kernel.
pub fn threads_cpu_time(pid: u32) -> Result<Duration> {
    let mut nanos = 0;
    let tasks = format!("/proc/{pid}/task");
    for task in std::fs::read_dir(&tasks).with_context(|| format!("reading {tasks}"))? {
        // A thread has ended since the listing.
        let Ok(stat) = std::fs::read_to_string(task?.path().join("schedstat")) else { continue };
        nanos += stat.split(' ').next().context("no time in schedstat")?.parse::<u64>()?;
    }
    Ok(Duration::from_nanos(nanos))
}
