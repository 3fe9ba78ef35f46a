//! The compose file as a running project: starting it, and doing things to its containers.
//!
//! Containers are found by the labels that every Compose gives them, so version 1 and version 2 are the same here. Taking
//! the project down is left to envoy/tools/compose/test.sh, which also does it when this program has died.

use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use tokio::process::Command;
use weir_envoy::wait;

/// How often a container is frozen again: the engine gives up if a process in it starts another one meanwhile.
const FREEZES: usize = 5;
/// Of one command.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(240);
/// Of the one that starts everything, a new database among it.
const START_TIMEOUT: Duration = Duration::from_secs(600);
const HEALTHY_TIMEOUT: Duration = Duration::from_secs(120);

/// One project of the compose file.
pub struct Compose {
    /// The program and its constant arguments: the file and the project's name.
    command: Vec<String>,
    project: String,
    /// Ports and tags, as variables of the compose file.
    variables: Vec<(String, String)>,
}

impl Compose {
    /// `command` is a Compose with its file and project; `project` is the project's name.
    pub fn new(command: &str, project: &str) -> Self {
        let command = command.split_whitespace().map(str::to_owned).collect();
        Self { command, project: project.to_owned(), variables: Vec::new() }
    }

    /// Sets a variable of the compose file.
    pub fn set(&mut self, name: &str, value: impl ToString) {
        self.variables.push((name.to_owned(), value.to_string()));
    }

    /// Starts everything, in the order of the file, and waits until it runs.
    pub async fn up(&self) -> Result<()> {
        run(self.compose(&["up", "--detach", "--no-build"])?, START_TIMEOUT).await.map(drop)
    }

    /// Replaces a service's container by a new one.
    pub async fn recreate(&self, service: &str) -> Result<()> {
        let recreate = ["up", "--detach", "--no-build", "--no-deps", "--force-recreate", service];
        run(self.compose(&recreate)?, COMMAND_TIMEOUT).await.map(drop)
    }

    /// `docker pause`, `unpause`, `kill` or `start` of a service's container.
    pub async fn container(&self, verb: &str, service: &str) -> Result<()> {
        let id = self.id(service).await?;
        for _ in 0..FREEZES {
            match docker(&[verb, &id]).await {
                Err(error) if error.to_string().contains("unable to freeze") => {}
                done => return done.map(drop),
            }
        }
        docker(&[verb, &id]).await.map(drop)
    }

    /// `docker network connect` or `disconnect` of a service's container.
    pub async fn network(&self, verb: &str, network: &str, service: &str) -> Result<()> {
        let (network, id) = (format!("{}_{network}", self.project), self.id(service).await?);
        docker(&["network", verb, &network, &id]).await.map(drop)
    }

    /// Waits until the health check of a service's container has passed.
    pub async fn healthy(&self, service: &str) -> Result<()> {
        let id = self.id(service).await?;
        let healthy = async || {
            let health = docker(&["inspect", "--format", "{{.State.Health.Status}}", &id]).await;
            health.is_ok_and(|health| health == "healthy")
        };
        wait::until(&format!("{service} is healthy"), HEALTHY_TIMEOUT, healthy).await
    }

    /// The last lines of a service's log.
    pub async fn log(&self, service: &str) -> Result<String> {
        let id = self.id(service).await?;
        let output = Command::new("docker").args(["logs", "--tail", "15", &id]).output().await?;
        Ok(format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr)))
    }

    /// The services of the project that have a container.
    pub async fn services(&self) -> Result<Vec<String>> {
        let project = format!("label=com.docker.compose.project={}", self.project);
        let format = "{{.Label \"com.docker.compose.service\"}}";
        let services = docker(&["ps", "--all", "--filter", &project, "--format", format]).await?;
        Ok(services.lines().map(str::to_owned).collect())
    }

    async fn id(&self, service: &str) -> Result<String> {
        let project = format!("label=com.docker.compose.project={}", self.project);
        let service = format!("label=com.docker.compose.service={service}");
        let ids = docker(&["ps", "--all", "--quiet", "--filter", &project, "--filter", &service]).await?;
        let mut lines = ids.lines();
        match (lines.next(), lines.next()) {
            (Some(id), None) => Ok(id.to_owned()),
            _ => bail!("there is not one container with {service}: {ids:?}"),
        }
    }

    fn compose(&self, arguments: &[&str]) -> Result<Command> {
        let (program, always) = self.command.split_first().context("no Compose was named")?;
        let mut command = Command::new(program);
        command.args(always).args(arguments).envs(self.variables.iter().map(|(name, value)| (name, value)));
        Ok(command)
    }
}

async fn docker(arguments: &[&str]) -> Result<String> {
    let mut command = Command::new("docker");
    command.args(arguments);
    run(command, COMMAND_TIMEOUT).await
}

async fn run(mut command: Command, within: Duration) -> Result<String> {
    let shown = format!("{:?}", command.as_std());
    let output = command.stdin(Stdio::null()).kill_on_drop(true).output();
    let output = tokio::time::timeout(within, output).await;
    let output = output.with_context(|| format!("{shown} takes more than {within:?}"))??;
    ensure!(output.status.success(), "{shown}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}
