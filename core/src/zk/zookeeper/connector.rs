//! Making a connection: try the host's addresses, hold the crate down to one of them.

use std::net::SocketAddr;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Poll;
use std::time::Duration;

use tokio::time::Instant;
use zookeeper_client::{Client, Error, SessionInfo};

use super::config::Config;
use super::connection::ZooKeeperConnection;
use super::knock::Knock;
use super::link::Link;
use super::names::Names;
use super::socket;
#[cfg(feature = "tls")]
use super::tls::Handshake;
use crate::env::BoxFuture;
use crate::limits;
use crate::words;
use crate::zk::{
    ConnectError, ConnectRequest, Connection, Connector, Endpoint, SessionCredentials, SessionId,
};

/// Connects to real servers. Its connections run on the tokio runtime that they are made in.
pub struct ZooKeeperConnector {
    shared: Arc<Shared>,
}

struct Shared {
    config: Config,
    #[cfg(feature = "tls")]
    tls: Option<zookeeper_client::TlsOptions>,
    names: Arc<Names>,
    /// Whether there has been a connection.
    started: AtomicBool,
    /// Moves on with every connection, so that the addresses of one name share the load.
    rotation: AtomicUsize,
    /// The session timeout that was asked for last, and what was granted.
    granted: Mutex<Option<(Duration, Duration)>>,
}

impl std::fmt::Debug for ZooKeeperConnector {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ZooKeeperConnector").field("config", &self.shared.config).finish_non_exhaustive()
    }
}

impl ZooKeeperConnector {
    /// Prepares to connect as `config` says.
    ///
    /// # Errors
    ///
    /// [`ConnectError::BadOptions`] if certificates or keys can't be read.
    pub fn new(config: Config) -> Result<Self, ConnectError> {
        #[cfg(feature = "tls")]
        let tls = config.tls.as_ref().map(super::config::TlsConfig::to_options).transpose()?;
        Ok(Self {
            shared: Arc::new(Shared {
                config,
                #[cfg(feature = "tls")]
                tls,
                names: Names::of_the_system(),
                started: AtomicBool::new(false),
                rotation: AtomicUsize::new(0),
                granted: Mutex::new(None),
            }),
        })
    }
}

#[cfg(any(test, feature = "simulation"))]
#[doc(hidden)]
impl ZooKeeperConnector {
    /// As [`new`](Self::new), with name servers of a test's own.
    pub fn with_lookup(config: Config, lookup: super::names::Lookup) -> Result<Self, ConnectError> {
        let mut connector = Self::new(config)?;
        if let Some(shared) = Arc::get_mut(&mut connector.shared) {
            shared.names = Names::new(lookup);
        }
        Ok(connector)
    }
}

impl Connector for ZooKeeperConnector {
    fn connect(&self, request: ConnectRequest) -> BoxFuture<Result<Arc<dyn Connection>, ConnectError>> {
        let shared = self.shared.clone();
        Box::pin(async move {
            let deadline = Instant::now() + request.connect_timeout;
            match tokio::time::timeout_at(deadline, shared.connect(&request, deadline)).await {
                Ok(Ok(connection)) => Ok(Arc::new(connection) as Arc<dyn Connection>),
                Ok(Err(error)) => Err(error),
                Err(_) => Err(ConnectError::Unreachable(format!(
                    "{}: no answer within {}",
                    request.endpoint,
                    words::duration(request.connect_timeout)
                ))),
            }
        })
    }
}

/// What to tell the crate to connect to, and the addresses at which that ends up.
struct Target {
    cluster: String,
    /// For messages.
    name: String,
    peers: Vec<SocketAddr>,
}

impl Shared {
    async fn connect(
        &self,
        request: &ConnectRequest,
        deadline: Instant,
    ) -> Result<ZooKeeperConnection, ConnectError> {
        let session = session_info(request)?;
        // The crate's reactor takes three with the first connection, and keeps them.
        limits::descriptors_are_left(if self.started.load(Ordering::Relaxed) { 1 } else { 4 }).map_err(
            |error| {
                ConnectError::OutOfResources(format!(
                    "no connection to {}: {}",
                    request.endpoint,
                    words::system_error(&error)
                ))
            },
        )?;
        let addresses = self.names.resolve(&request.endpoint, session.is_some(), deadline).await?;
        let addresses = in_turns(addresses, self.rotation.fetch_add(1, Ordering::Relaxed));
        let targets = self.targets(&request.endpoint, addresses)?;
        let mut failures = Vec::new();
        for (tried, target) in targets.iter().enumerate() {
            // An address that swallows packets must leave time for the others.
            let left = deadline.saturating_duration_since(Instant::now());
            let share = left / u32::try_from(targets.len() - tried).unwrap_or(u32::MAX);
            let attempt = self.attach(request, session.clone(), target);
            match tokio::time::timeout(share, attempt).await {
                Ok(Err(ConnectError::Unreachable(why))) => failures.push(why),
                Ok(decided) => return decided,
                Err(_) => {
                    failures.push(format!("{}: no answer within {}", target.name, words::duration(share)))
                }
            }
        }
        Err(ConnectError::Unreachable(failures.join("; ")))
    }

    /// What to try, in this order.
    fn targets(&self, endpoint: &Endpoint, addresses: Vec<SocketAddr>) -> Result<Vec<Target>, ConnectError> {
        #[cfg(feature = "tls")]
        if self.tls.is_some() {
            // The certificate is for the name, so the crate has to be given the name. It panics on one that can't
            // stand in a certificate.
            let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
            if endpoint.host.parse::<std::net::IpAddr>().is_err() && !endpoint.host.chars().all(fits) {
                return Err(ConnectError::BadOptions(format!("{} can't be used with TLS", endpoint.host)));
            }
            return Ok(vec![Target {
                cluster: format!("tcp+tls://{endpoint}"),
                name: endpoint.to_string(),
                peers: addresses,
            }]);
        }
        let _ = endpoint;
        Ok(addresses
            .into_iter()
            .map(|address| Target {
                cluster: address.to_string(),
                name: address.to_string(),
                peers: vec![address],
            })
            .collect())
    }

    /// Connects to one address and attaches to the session.
    async fn attach(
        &self,
        request: &ConnectRequest,
        session: Option<SessionInfo>,
        target: &Target,
    ) -> Result<ZooKeeperConnection, ConnectError> {
        let re_attaching = session.is_some();
        let connector = self.client_connector(request, session);
        let (client, task) = match connect_client(connector, &target.cluster).await {
            Ok(connected) => connected,
            Err(Error::SessionExpired) if re_attaching => return Err(ConnectError::SessionExpired),
            Err(Error::AuthFailed) => return Err(self.refused(target)),
            // Whatever goes wrong on the network, the crate only logs, and says in the end that no host is left.
            Err(
                Error::NoHosts
                | Error::ConnectionLoss
                | Error::Timeout
                | Error::SessionExpired
                | Error::ClientClosed,
            ) => {
                // A better message is not worth the time of a session that waits to be saved.
                let why = if re_attaching {
                    "could not be attached to".to_owned()
                } else {
                    self.knock(request, target).why().await
                };
                return Err(ConnectError::Unreachable(format!("{}: {why}", target.name)));
            }
            // All others come before anything is sent.
            Err(error) => return Err(ConnectError::BadOptions(format!("{}: {error}", target.name))),
        };
        // Looks through all descriptors of the process, which can take a while: not on the engine's thread.
        let peers = target.peers.clone();
        let _ = tokio::task::spawn_blocking(move || socket::set_nodelay(&peers)).await;
        self.started.store(true, Ordering::Relaxed);
        let session_timeout = client.session_timeout();
        *self.granted.lock().unwrap_or_else(PoisonError::into_inner) =
            Some((request.session_timeout, session_timeout));
        let session = client.session().clone();
        let server = match target.peers.as_slice() {
            [peer] => Some(peer.to_string()),
            _ => None,
        };
        let connection = ZooKeeperConnection {
            server,
            read_only: session.is_readonly(),
            credentials: SessionCredentials {
                id: SessionId(session.id().0),
                // The crate keeps the password to itself, inside the session info.
                password: Vec::new(),
                opaque: Some(Arc::new(session)),
            },
            session_timeout,
            link: Link::start(client, task),
        };
        #[cfg(feature = "sasl")]
        if let Err(error) = self.check_identity(&connection, target).await {
            if !re_attaching {
                // Nobody else would end it.
                drop(connection.link.close());
            }
            return Err(error);
        }
        Ok(connection)
    }

    fn knock(&self, request: &ConnectRequest, target: &Target) -> Knock {
        let _ = request;
        Knock {
            peers: target.peers.clone(),
            #[cfg(feature = "tls")]
            tls: self.config.tls.as_ref().and_then(|tls| Handshake::new(tls, &request.endpoint.host)),
        }
    }

    /// The server refused what we showed, or that we showed nothing.
    fn refused(&self, target: &Target) -> ConnectError {
        let shown = self.config.identities();
        let why = if shown.is_empty() {
            "the server wants the client to authenticate, and no credentials are set (auth or sasl)"
                .to_owned()
        } else {
            format!("the server refused the credentials ({})", shown.join(", "))
        };
        ConnectError::AuthFailed(format!("{}: {why}", target.name))
    }

    /// Makes sure that the server has taken the SASL user that we have shown.
    ///
    /// One that does not do SASL answers with an empty token, which the crate takes for success: we would go on as
    /// nobody.
    #[cfg(feature = "sasl")]
    async fn check_identity(
        &self,
        connection: &ZooKeeperConnection,
        target: &Target,
    ) -> Result<(), ConnectError> {
        let Some(sasl) = &self.config.sasl else { return Ok(()) };
        let asked = connection.link.request(|client| async move {
            match client.list_auth_users().await {
                Ok(users) => Ok(Some(users.iter().any(|user| user.scheme() == "sasl"))),
                // Servers before 3.7 can't be asked.
                Err(Error::Unimplemented) => Ok(None),
                Err(error) => Err(error),
            }
        });
        match asked.await {
            Ok(Some(true)) => Ok(()),
            Ok(Some(false)) => Err(ConnectError::AuthFailed(format!(
                "{}: the server does not authenticate by SASL, so user {:?} would be nobody there; set up its \
                 SASL (authProvider.sasl and a JAAS login), or leave the client's sasl out",
                target.name, sasl.username
            ))),
            Ok(None) => {
                tracing::warn!(server = %target.name, "this server can't tell whether it took the SASL user");
                Ok(())
            }
            Err(error) => Err(ConnectError::Unreachable(format!("{}: {error}", target.name))),
        }
    }

    fn client_connector(
        &self,
        request: &ConnectRequest,
        session: Option<SessionInfo>,
    ) -> zookeeper_client::Connector {
        let mut connector = Client::connector()
            .with_fail_eagerly()
            .with_session_timeout(request.session_timeout)
            .with_connection_timeout(self.silence_limit(request.session_timeout))
            .with_readonly(request.read_only && session.is_none());
        if let Some(session) = session {
            connector = connector.with_session(session);
        }
        for authentication in &self.config.authentications {
            connector = connector.with_auth(&authentication.scheme, &authentication.secret);
        }
        #[cfg(feature = "tls")]
        if let Some(tls) = &self.tls {
            connector = connector.with_tls(tls.clone());
        }
        #[cfg(feature = "sasl")]
        if let Some(sasl) = &self.config.sasl {
            connector = connector.with_sasl(sasl.to_options());
        }
        connector
    }

    /// How long the crate puts up with silence before it drops the connection.
    ///
    /// It pings after 3/8 of it without a request, and takes at most 3/5 of the session timeout. With that, its
    /// pings come later than our own heartbeats, which are a sixth apart, and so not at all. It goes by the
    /// *granted* timeout, which can be lower than what we ask for, and falls back to a shorter limit when ours is
    /// too long for it; so what was granted last time is the better guess.
    fn silence_limit(&self, asked: Duration) -> Duration {
        let granted = *self.granted.lock().unwrap_or_else(PoisonError::into_inner);
        let expected = match granted {
            Some((last_asked, granted)) if last_asked == asked => granted.min(asked),
            _ => asked,
        };
        expected * 3 / 5
    }
}

/// What the crate needs to re-attach to the session that is asked for.
fn session_info(request: &ConnectRequest) -> Result<Option<SessionInfo>, ConnectError> {
    let Some(credentials) = &request.session else { return Ok(None) };
    let info = credentials.opaque.as_ref().and_then(|opaque| opaque.downcast_ref::<SessionInfo>());
    match info {
        Some(info) if info.is_readonly() => Err(ConnectError::SessionExpired),
        Some(info) => Ok(Some(info.clone())),
        None => {
            Err(ConnectError::BadOptions(format!("session {} was made by another connector", credentials.id)))
        }
    }
}

/// Orders addresses so that both families get their turn early, and each connection starts at another one.
fn in_turns(found: Vec<SocketAddr>, rotation: usize) -> Vec<SocketAddr> {
    let preferred_v6 = found.first().is_some_and(SocketAddr::is_ipv6);
    let (mut first, mut second): (Vec<_>, Vec<_>) =
        found.into_iter().partition(|address| address.is_ipv6() == preferred_v6);
    for family in [&mut first, &mut second] {
        if !family.is_empty() {
            let by = rotation % family.len();
            family.rotate_left(by);
        }
    }
    let mut ordered = Vec::with_capacity(first.len() + second.len());
    let (mut first, mut second) = (first.into_iter(), second.into_iter());
    loop {
        match (first.next(), second.next()) {
            (None, None) => return ordered,
            (one, other) => ordered.extend(one.into_iter().chain(other)),
        }
    }
}

/// Runs the crate's `connect`, and gives what it wants to have spawned along with the client.
async fn connect_client(
    connector: zookeeper_client::Connector,
    cluster: &str,
) -> Result<(Client, BoxFuture<()>), Error> {
    let spawner = Catcher(Mutex::new(None));
    let mut connecting = pin!(connector.connect(cluster));
    let client = std::future::poll_fn(|cx| {
        let _scope = spawns_core::enter(&spawner);
        match connecting.as_mut().poll(cx) {
            Poll::Ready(result) => Poll::Ready(result),
            Poll::Pending => Poll::Pending,
        }
    })
    .await?;
    let task = spawner.0.into_inner().unwrap_or_else(PoisonError::into_inner);
    // Without its task the client would be dead; the crate spawns it before it returns.
    let task = task.ok_or(Error::ClientClosed)?;
    Ok((client, task))
}

/// Keeps the task that the crate spawns, instead of running it.
struct Catcher(Mutex<Option<BoxFuture<()>>>);

impl spawns_core::Spawn for Catcher {
    fn spawn(&self, task: spawns_core::Task) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(Box::into_pin(task.future));
    }
}
