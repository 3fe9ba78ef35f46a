//! A real MariaDB or MySQL as a part of a scenario: private and small; can be paused, killed, and restarted with its
//! data.
//!
//! `envoy/tools/install/databases.sh` finds and installs the servers. MariaDB is expected to be there: `WEIR_MARIADBD`, or
//! `mariadbd` in the usual places. MySQL may be missing: `WEIR_MYSQLD_ROOT`, or `.tools/mysql-sid`, names a folder that
//! holds a Debian with MySQL in it, whose server runs here with that folder's libraries.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use tempfile::TempDir;
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;

use crate::processes::ports;
use crate::processes::process::Process;

const READY_TIMEOUT: Duration = Duration::from_secs(60);
const GREETING_TIMEOUT: Duration = Duration::from_secs(2);
const LOADER: &str = "lib64/ld-linux-x86-64.so.2";

/// The tests' account has all privileges and a password.
const ACCOUNTS: &str = "\
CREATE USER IF NOT EXISTS 'weir'@'%' IDENTIFIED BY 'geheim';
GRANT ALL PRIVILEGES ON *.* TO 'weir'@'%' WITH GRANT OPTION;
FLUSH PRIVILEGES;
";

/// Small buffers and logs, so that the server starts quickly.
const COMMON: [&str; 8] = [
    "--bind-address=127.0.0.1",
    "--skip-name-resolve",
    "--performance-schema=OFF",
    "--innodb-buffer-pool-size=64M",
    "--innodb-flush-log-at-trx-commit=2",
    "--skip-log-bin",
    "--max-connections=200",
    "--secure-file-priv=",
];

/// The kind of server, and the path of its program or root.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Kind {
    MariaDb(PathBuf),
    MySql(PathBuf),
}

/// A running database server; it ends when this value is dropped, and its data is removed.
pub struct DatabaseServer {
    kind: Kind,
    process: Process,
    port: u16,
    arguments: Vec<String>,
    folder: TempDir,
}

impl DatabaseServer {
    /// Starts a MariaDB and waits until it is ready.
    pub async fn mariadb() -> Result<Self> {
        Self::start(Kind::MariaDb(find_mariadbd()?), &[]).await
    }

    /// Starts a MySQL; `None` if none is installed. `arguments` are passed to the server.
    pub async fn mysql(arguments: &[&str]) -> Result<Option<Self>> {
        match find_mysql() {
            Some(root) => Self::start(Kind::MySql(root), arguments).await.map(Some),
            None => Ok(None),
        }
    }

    async fn start(kind: Kind, arguments: &[&str]) -> Result<Self> {
        let folder = tempfile::Builder::new().prefix("weir-database-").tempdir()?;
        std::fs::write(folder.path().join("accounts.sql"), ACCOUNTS)?;
        kind.create_data(folder.path())?;
        let port = ports::free()?;
        let arguments: Vec<_> = arguments.iter().map(|argument| (*argument).to_owned()).collect();
        let process = kind.spawn(folder.path(), port, &arguments)?;
        let mut server = Self { kind, process, port, arguments, folder };
        server.wait_ready().await?;
        Ok(server)
    }

    /// Kills it if it is running, and starts it again with its data, on the same port.
    pub async fn restart(&mut self) -> Result<()> {
        self.process.kill()?;
        self.process = self.kind.spawn(self.folder.path(), self.port, &self.arguments)?;
        self.wait_ready().await
    }

    /// The URL of one of its databases, with an account that has all privileges.
    pub fn url(&self, database: &str) -> String {
        format!("mysql://weir:geheim@127.0.0.1:{}/{database}", self.port)
    }

    /// The path of its Unix socket.
    pub fn socket(&self) -> PathBuf {
        self.folder.path().join("socket")
    }

    /// Its TCP port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The process, to pause or kill it.
    pub fn process(&mut self) -> &mut Process {
        &mut self.process
    }

    /// A server that is ready sends a greeting first; one that is starting does not.
    async fn wait_ready(&mut self) -> Result<()> {
        let address = ports::local(self.port);
        let greets = async || {
            let greeting = async {
                let mut stream = TcpStream::connect(address).await?;
                stream.read_u8().await
            };
            matches!(tokio::time::timeout(GREETING_TIMEOUT, greeting).await, Ok(Ok(_)))
        };
        self.process.wait_for("the database greets", READY_TIMEOUT, greets).await
    }
}

impl Kind {
    fn create_data(&self, folder: &Path) -> Result<()> {
        let data = format!("--datadir={}", folder.join("data").display());
        let mut command = match self {
            Kind::MariaDb(program) => {
                let install = program
                    .parent()
                    .into_iter()
                    .flat_map(|bin| [bin.join("mariadb-install-db"), bin.join("../bin/mariadb-install-db")]);
                let install = install.into_iter().find(|path| path.is_file());
                let mut command = Command::new(install.unwrap_or_else(|| "mariadb-install-db".into()));
                command.args(["--no-defaults", "--auth-root-authentication-method=normal", "--skip-test-db"]);
                command
            }
            Kind::MySql(root) => {
                let mut command = mysqld(root);
                command.args(["--no-defaults", "--initialize-insecure", "--innodb-redo-log-capacity=8M"]);
                command.args(["--secure-file-priv=", "--log-error-verbosity=1"]);
                command
            }
        };
        // On start, a server removes files of other servers in the temporary folder; so each server has its own.
        command.arg(data).args(run_as()).env("TMPDIR", folder);
        let output = command.stdin(Stdio::null()).output().context("creating a database's folder")?;
        let stderr = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "creating a database's folder: {}\n{stderr}", output.status);
        Ok(())
    }

    fn spawn(&self, folder: &Path, port: u16, arguments: &[String]) -> Result<Process> {
        let (name, mut command, own): (_, _, &[&str]) = match self {
            Kind::MariaDb(program) => ("mariadbd", Command::new(program), &["--innodb-log-file-size=8M"]),
            Kind::MySql(root) => ("mysqld", mysqld(root), &["--innodb-redo-log-capacity=8M", "--mysqlx=OFF"]),
        };
        command
            .arg("--no-defaults")
            .arg(format!("--datadir={}", folder.join("data").display()))
            .arg(format!("--socket={}", folder.join("socket").display()))
            .arg(format!("--pid-file={}", folder.join("pid").display()))
            .arg(format!("--init-file={}", folder.join("accounts.sql").display()))
            .arg(format!("--port={port}"))
            .args(COMMON)
            .args(own)
            .args(run_as())
            .args(arguments)
            .env("TMPDIR", folder);
        Process::spawn(name, command, folder)
    }
}

/// Database servers only run as root if an option permits it.
fn run_as() -> Option<&'static str> {
    let own = std::fs::metadata("/proc/self").ok()?;
    (own.uid() == 0).then_some("--user=root")
}

/// Runs MySQL's server with the libraries of its own Debian root.
fn mysqld(root: &Path) -> Command {
    let mut command = Command::new(root.join(LOADER));
    let libraries: Vec<_> = ["usr/lib/x86_64-linux-gnu", "usr/lib/mysql/private"]
        .iter()
        .map(|folder| root.join(folder).display().to_string())
        .collect();
    command.arg("--library-path").arg(libraries.join(":")).arg(root.join("usr/sbin/mysqld"));
    command
}

fn find_mysql() -> Option<PathBuf> {
    let named = std::env::var_os("WEIR_MYSQLD_ROOT").map(PathBuf::from);
    let built = || Path::new(env!("CARGO_MANIFEST_DIR")).join("../.tools/mysql-sid");
    let root = named.unwrap_or_else(built);
    (root.join("usr/sbin/mysqld").is_file() && root.join(LOADER).exists()).then_some(root)
}

fn find_mariadbd() -> Result<PathBuf> {
    if let Some(named) = std::env::var_os("WEIR_MARIADBD").map(PathBuf::from) {
        ensure!(named.is_file(), "WEIR_MARIADBD names {}, which is not there", named.display());
        return Ok(named);
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(["/usr/sbin".into(), "/usr/local/sbin".into()])
        .map(|folder| folder.join("mariadbd"))
        .find(|program| program.is_file())
        .context("there is no mariadbd: run envoy/tools/install/databases.sh mariadb, or set WEIR_MARIADBD")
}
