//! One ZooKeeper server.

use std::fmt::Write as _;
use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use super::process::{self, Process};
use super::scratch::Scratch;
use super::{ServerError, Version, four_letter, jars};
use crate::processes;
use crate::proxy::listener::ReservedPort;
use crate::wait::lock;

/// How long a server may take to serve; a JVM on a busy machine needs seconds.
pub(super) const START_DEADLINE: Duration = Duration::from_secs(120);

const LOGBACK: &str = r#"<configuration>
  <appender name="out" class="ch.qos.logback.core.ConsoleAppender">
    <encoder><pattern>%d{HH:mm:ss.SSS} %-5level %logger{0} - %msg%n</pattern></encoder>
  </appender>
  <root level="INFO"><appender-ref ref="out"/></root>
</configuration>
"#;

/// A server's place in an ensemble.
#[derive(Debug, Clone)]
pub(super) struct Membership {
    pub id: usize,
    /// The `server.N` lines as this server is to see them.
    pub servers: String,
}

/// Settings of a server before its start.
#[derive(Debug, Clone)]
pub struct Builder {
    version: Version,
    tick: Duration,
    min_session: Option<Duration>,
    max_session: Option<Duration>,
    read_only: bool,
    config: Vec<String>,
    jvm: Vec<String>,
}

impl Default for Builder {
    fn default() -> Self {
        Self {
            version: Version::default(),
            tick: Duration::from_millis(200),
            min_session: None,
            max_session: None,
            read_only: false,
            config: Vec::new(),
            jvm: Vec::new(),
        }
    }
}

impl Builder {
    /// The version; the newest unless said.
    #[must_use]
    pub fn version(mut self, version: Version) -> Self {
        self.version = version;
        self
    }

    /// `tickTime`, in whole milliseconds; 200 ms unless said. It bounds session timeouts to 2–20 ticks.
    #[must_use]
    pub fn tick(mut self, tick: Duration) -> Self {
        self.tick = tick;
        self
    }

    /// `minSessionTimeout`, instead of two ticks.
    #[must_use]
    pub fn min_session(mut self, timeout: Duration) -> Self {
        self.min_session = Some(timeout);
        self
    }

    /// `maxSessionTimeout`, instead of twenty ticks.
    #[must_use]
    pub fn max_session(mut self, timeout: Duration) -> Self {
        self.max_session = Some(timeout);
        self
    }

    /// Whether the server answers reads when it has lost its ensemble.
    #[must_use]
    pub fn read_only(mut self, read_only: bool) -> Self {
        self.read_only = read_only;
        self
    }

    /// A further line of `zoo.cfg`. Keys that ZooKeeper does not know become system properties
    /// `zookeeper.<key>`.
    #[must_use]
    pub fn config(mut self, key: &str, value: &str) -> Self {
        self.config.push(format!("{key}={value}"));
        self
    }

    /// A further argument for the JVM, such as `-Dzookeeper.…=…`.
    #[must_use]
    pub fn jvm_arg(mut self, arg: &str) -> Self {
        self.jvm.push(arg.to_owned());
        self
    }

    /// Starts the server and returns when it serves. Blocks for about half a second.
    ///
    /// # Errors
    /// When the jars cannot be had or the server does not serve in time.
    pub fn start(self) -> Result<ZooKeeper, ServerError> {
        let server =
            self.prepare(None, ReservedPort::new(false).map_err(ServerError::io("reserving a port"))?)?;
        server.launch()?;
        server.wait_until_serving(START_DEADLINE)?;
        Ok(server)
    }

    pub(super) fn prepare(
        self,
        membership: Option<&Membership>,
        port: ReservedPort,
    ) -> Result<ZooKeeper, ServerError> {
        let lib = jars::fetch(self.version)?;
        let scratch = Scratch::new().map_err(ServerError::io("making a temporary folder"))?;
        let server = ZooKeeper {
            version: self.version,
            process: Mutex::new(None),
            port,
            lib,
            scratch,
            jvm: self.jvm.clone(),
            read_only: self.read_only,
        };
        server.write_config(&self, membership).map_err(ServerError::io("writing the configuration"))?;
        Ok(server)
    }
}

/// A ZooKeeper server. Dropping it kills the process and removes the data.
#[derive(Debug)]
pub struct ZooKeeper {
    version: Version,
    // Before `scratch`, so that the process has ended when its folder is removed.
    process: Mutex<Option<Process>>,
    port: ReservedPort,
    lib: PathBuf,
    scratch: Scratch,
    jvm: Vec<String>,
    read_only: bool,
}

impl ZooKeeper {
    /// A server with settings.
    #[must_use]
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// Starts a server with the default settings.
    ///
    /// # Errors
    /// As [`Builder::start`].
    pub fn start() -> Result<Self, ServerError> {
        Self::builder().start()
    }

    /// Where clients connect. It stays the same over restarts, and is nobody else's while the server is down.
    #[must_use]
    pub fn client_addr(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.port.port()).into()
    }

    /// [`client_addr`](Self::client_addr) as text.
    #[must_use]
    pub fn connect_string(&self) -> String {
        self.client_addr().to_string()
    }

    /// Its version.
    #[must_use]
    pub fn version(&self) -> Version {
        self.version
    }

    /// Its process id, while it runs.
    #[must_use]
    pub fn pid(&self) -> Option<u32> {
        lock(&self.process).as_ref().map(Process::pid)
    }

    /// The last lines of its log, of all its starts.
    #[must_use]
    pub fn log_tail(&self) -> String {
        process::log_tail(&self.log())
    }

    /// Ends the server in order (SIGTERM). Its sessions and data are kept.
    pub fn stop(&self) {
        if let Some(mut process) = self.process().take() {
            process.end(true);
        }
    }

    /// Ends the server at once (SIGKILL). Its sessions and data are kept.
    pub fn kill(&self) {
        if let Some(mut process) = self.process().take() {
            process.end(false);
        }
    }

    /// Freezes the server (SIGSTOP), and returns when it stands still. The kernel goes on accepting connections and
    /// bytes for it.
    ///
    /// # Errors
    /// When it does not stand still.
    pub fn pause(&self) -> Result<(), ServerError> {
        match self.pid() {
            Some(pid) => processes::freeze(pid).map_err(ServerError::io("freezing the server")),
            None => Ok(()),
        }
    }

    /// Lets a frozen server go on (SIGCONT).
    pub fn resume(&self) {
        if let Some(process) = &*self.process() {
            process.signal(libc::SIGCONT);
        }
    }

    /// Ends the server if it runs, and starts it on the same port with the same data. Returns when it serves,
    /// which a member of an ensemble does only with a majority.
    ///
    /// # Errors
    /// When it does not serve in time.
    pub fn restart(&self) -> Result<(), ServerError> {
        self.stop();
        self.launch()?;
        self.wait_until_serving(START_DEADLINE)
    }

    /// Ends the server and starts it again without data: no nodes, no sessions, and transactions counted from
    /// the beginning.
    ///
    /// # Errors
    /// When the data cannot be removed or the server does not serve in time.
    pub fn wipe(&self) -> Result<(), ServerError> {
        self.kill();
        let data = self.data_dir();
        if data.exists() {
            fs::remove_dir_all(&data).map_err(ServerError::io("removing the server's data"))?;
        }
        self.restart()
    }

    /// Starts the process, without waiting for it to serve.
    pub(super) fn launch(&self) -> Result<(), ServerError> {
        let mut process = self.process();
        if process.is_some() {
            return Ok(());
        }
        let folder = self.scratch.path();
        let java = std::env::var_os("JAVA_HOME")
            .map_or_else(|| PathBuf::from("java"), |home| Path::new(&home).join("bin").join("java"));
        let mut command = Command::new(java);
        command
            .args(["-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xshare:auto"])
            .arg(format!("-Dlogback.configurationFile={}", folder.join("logback.xml").display()))
            .arg(format!("-Dreadonlymode.enabled={}", self.read_only))
            .args(&self.jvm)
            .arg("-cp")
            .arg(self.lib.join("*"))
            .arg("org.apache.zookeeper.server.quorum.QuorumPeerMain")
            .arg(folder.join("zoo.cfg"));
        *process =
            Some(Process::start(command, &self.log(), folder).map_err(ServerError::io("starting java"))?);
        Ok(())
    }

    /// Waits until the server serves, as anything.
    pub(super) fn wait_until_serving(&self, deadline: Duration) -> Result<(), ServerError> {
        let start = Instant::now();
        loop {
            if four_letter::ask_once(self.client_addr(), "srvr")
                .is_ok_and(|srvr| four_letter::mode(&srvr).is_some())
            {
                return Ok(());
            }
            self.check_running()?;
            let waited = start.elapsed();
            if waited > deadline {
                return Err(ServerError::NotInTime {
                    what: "serving".to_owned(),
                    waited,
                    log: self.log_tail(),
                });
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    pub(super) fn check_running(&self) -> Result<(), ServerError> {
        let mut process = self.process();
        let process = process.as_mut().ok_or(ServerError::NotRunning)?;
        match process.ended() {
            Some(status) => Err(ServerError::Ended { status: status.to_string(), log: self.log_tail() }),
            None => Ok(()),
        }
    }

    /// The folder with snapshots and transaction logs.
    pub(super) fn data_dir(&self) -> PathBuf {
        self.scratch.path().join("data").join("version-2")
    }

    fn log(&self) -> PathBuf {
        self.scratch.path().join("server.log")
    }

    fn process(&self) -> MutexGuard<'_, Option<Process>> {
        lock(&self.process)
    }

    fn write_config(&self, settings: &Builder, membership: Option<&Membership>) -> std::io::Result<()> {
        let folder = self.scratch.path();
        let data = folder.join("data");
        fs::create_dir_all(&data)?;
        let mut config = format!(
            "dataDir={}\ntickTime={}\nadmin.enableServer=false\n4lw.commands.whitelist=*\nmaxClientCnxns=0\n\
             forceSync=no\nsnapshot.trust.empty=true\npreAllocSize=1024\n",
            data.display(),
            settings.tick.as_millis(),
        );
        if let Some(timeout) = settings.min_session {
            let _ = writeln!(config, "minSessionTimeout={}", timeout.as_millis());
        }
        if let Some(timeout) = settings.max_session {
            let _ = writeln!(config, "maxSessionTimeout={}", timeout.as_millis());
        }
        match membership {
            None => {
                let _ = writeln!(config, "clientPort={}\nclientPortAddress=127.0.0.1", self.port.port());
            }
            Some(Membership { id, servers }) => {
                // The number at the end is the configuration's version. With none, a new leader would hand its
                // own view of the addresses to the others, and with it ways around the proxies.
                let dynamic = folder.join("zoo.cfg.dynamic.100000000");
                fs::write(&dynamic, servers)?;
                fs::write(data.join("myid"), id.to_string())?;
                let _ = writeln!(config, "dynamicConfigFile={}", dynamic.display());
            }
        }
        for line in &settings.config {
            let _ = writeln!(config, "{line}");
        }
        fs::write(folder.join("zoo.cfg"), config)?;
        fs::write(folder.join("logback.xml"), LOGBACK)
    }
}
