//! Connecting: one server after the other, round after round, until one of them attaches us.
//!
//! No single server decides. One that refuses our credentials may be the next in line for the new ones, so the
//! others are asked as well, and the round after that asks all of them again.

use std::sync::Arc;
use std::time::Duration;

use super::hosts::Hosts;
use super::hub::Hub;
use super::lease;
use super::retry::{backoff, jittered};
use crate::env::Moment;
use crate::error::{Error, ErrorCode};
use crate::words;
use crate::zk::{ConnectError, ConnectRequest, Connection, Endpoint, SessionCredentials};

/// The first delay between two rounds of connecting.
pub(super) const FIRST_DELAY: Duration = Duration::from_millis(50);
/// The longest delay between two rounds of connecting.
const LONGEST_DELAY: Duration = Duration::from_secs(1);
/// A connection that ends sooner than this makes the next one wait a little.
const SHORT_LIVED: Duration = Duration::from_secs(1);
/// How often a client of a read-only server looks for one that grants locks.
const SEEK_INTERVAL: Duration = Duration::from_secs(1);

/// Makes the connections of one client.
pub(super) struct Dialer {
    hub: Arc<Hub>,
    hosts: Hosts,
    /// How many connections in a row ended soon after they were made.
    short_lived: u32,
    /// How long the last connect took that succeeded.
    took: Duration,
}

/// The session to re-attach to.
pub(super) struct Live {
    pub(super) credentials: SessionCredentials,
    /// How long an outage the session survives.
    pub(super) slack: Duration,
}

pub(super) struct Attached {
    pub(super) connection: Arc<dyn Connection>,
    /// When the attempt that succeeded began.
    pub(super) sent: Moment,
}

/// Why there will be no connection.
pub(super) enum Stopped {
    /// The session that was to be re-attached has expired.
    SessionExpired,
    /// Our own settings can't be right, whatever the servers are.
    Failed(Error),
}

impl Dialer {
    pub(super) fn new(hub: Arc<Hub>) -> Self {
        Self { hosts: Hosts::shuffled(&hub), hub, short_lived: 0, took: Duration::ZERO }
    }

    /// Attaches to the session that lives, or else to a new one. Goes on until it does.
    pub(super) async fn attach(&mut self, live: Option<&Live>) -> Result<Attached, Stopped> {
        let hub = self.hub.clone();
        let began = hub.env.now();
        if self.short_lived > 1 {
            self.pause(live, self.short_lived - 2).await;
        }
        let mut attempts = 0_u64;
        for rounds in 0.. {
            let mut failures = Vec::with_capacity(self.hosts.len());
            for _ in 0..self.hosts.len() {
                let endpoint = self.hosts.next();
                let sent = hub.env.now();
                attempts += 1;
                let session = live.map(|live| live.credentials.clone());
                let error = match try_connect(&hub, &endpoint, session, self.attempt_timeout(live)).await {
                    Ok(connection) => {
                        self.took = hub.env.now().since(sent);
                        if attempts > 1 {
                            let after = words::duration(hub.env.now().since(began));
                            tracing::info!("connected to {endpoint} after {attempts} attempts in {after}");
                        } else {
                            tracing::info!("connected to {endpoint}");
                        }
                        return Ok(Attached { connection, sent });
                    }
                    Err(error) => error,
                };
                tracing::debug!(attempt = attempts, "could not connect to {endpoint}: {error}");
                hub.note_trouble(endpoint.to_string(), error.to_string());
                if live.is_some() && error == ConnectError::SessionExpired {
                    return Err(Stopped::SessionExpired);
                }
                failures.push((endpoint, error));
            }
            // While a session lives, its locks are worth every further try.
            let verdict = if live.is_some() { Verdict::TryOn } else { verdict(&failures) };
            if rounds == 0 && matches!(verdict, Verdict::TryOn) {
                tracing::warn!(
                    "{}; trying again, with no more than {} between two rounds",
                    hub.why_disconnected(),
                    words::duration(longest_delay(live))
                );
            }
            match verdict {
                Verdict::TryOn => {}
                Verdict::InVain(error) => hub.turn_away(error),
                Verdict::Hopeless(error) => return Err(Stopped::Failed(error)),
            }
            self.pause(live, rounds).await;
        }
        std::future::pending().await
    }

    /// Notes how long a connection lasted that was made here.
    pub(super) fn lasted(&mut self, lived: Duration) {
        self.short_lived = if lived < SHORT_LIVED { self.short_lived.saturating_add(1) } else { 0 };
    }

    /// While we are with a read-only server, looks for one that grants locks.
    pub(super) async fn seek_writable(&mut self) -> Attached {
        let hub = self.hub.clone();
        loop {
            hub.env.sleep(SEEK_INTERVAL).await;
            let sent = hub.env.now();
            let timeout = hub.options.connection_timeout;
            let mut request = connect_request(&hub, &self.hosts.next(), None, timeout);
            request.read_only = false;
            if let Ok(connection) = connect_within(&hub, request).await {
                return Attached { connection, sent };
            }
        }
    }

    async fn pause(&self, live: Option<&Live>, doublings: u32) {
        let delay = backoff(FIRST_DELAY, longest_delay(live), doublings);
        self.hub.env.sleep(jittered(delay, self.hub.env.fraction())).await;
    }

    /// How long one attempt may take: with a session to save, short enough to leave time for another one, but long
    /// enough for a network on which connecting took longer before.
    fn attempt_timeout(&self, live: Option<&Live>) -> Duration {
        let longest = self.hub.options.connection_timeout;
        match live {
            Some(live) => {
                let usual = (self.took * 4).min(live.slack / 3);
                longest.min(lease::reconnect_attempt(live.slack).max(usual))
            }
            None => longest.min((self.hub.options.session_timeout / 3).max(Duration::from_secs(1))),
        }
    }
}

/// While a lease runs down, every second counts.
fn longest_delay(live: Option<&Live>) -> Duration {
    live.map_or(LONGEST_DELAY, |live| lease::reconnect_delay(live.slack))
}

/// What a round of attempts that all failed comes to, for a new session.
#[derive(Debug)]
enum Verdict {
    TryOn,
    /// Every server refuses us, or we can't even try: what waits now waits in vain, though the cause may be mended.
    InVain(Error),
    /// Our own options can't be right for any server.
    Hopeless(Error),
}

fn verdict(failures: &[(Endpoint, ConnectError)]) -> Verdict {
    let told = |code| {
        let each: Vec<_> = failures.iter().map(|(server, error)| by_server(server, error)).collect();
        Error::new(code, each.join("; "))
    };
    let all = |fits: fn(&ConnectError) -> bool| failures.iter().all(|(_, error)| fits(error));
    let short = failures.iter().find(|(_, error)| matches!(error, ConnectError::OutOfResources(_)));
    if let Some((_, error)) = short {
        Verdict::InVain(Error::new(ErrorCode::OutOfResources, error.to_string()))
    } else if all(|error| matches!(error, ConnectError::BadOptions(_))) {
        Verdict::Hopeless(told(ErrorCode::InvalidArgument))
    } else if all(|error| matches!(error, ConnectError::AuthFailed(_) | ConnectError::BadOptions(_))) {
        Verdict::InVain(told(ErrorCode::NotPermitted))
    } else {
        Verdict::TryOn
    }
}

fn by_server(server: &Endpoint, error: &ConnectError) -> String {
    super::hub::by_server(&server.to_string(), &error.to_string())
}

/// One attempt at one server.
pub(super) async fn try_connect(
    hub: &Hub,
    endpoint: &Endpoint,
    session: Option<SessionCredentials>,
    timeout: Duration,
) -> Result<Arc<dyn Connection>, ConnectError> {
    connect_within(hub, connect_request(hub, endpoint, session, timeout)).await
}

fn connect_request(
    hub: &Hub,
    endpoint: &Endpoint,
    session: Option<SessionCredentials>,
    timeout: Duration,
) -> ConnectRequest {
    ConnectRequest {
        endpoint: endpoint.clone(),
        read_only: hub.options.allow_read_only && session.is_none(),
        session,
        session_timeout: hub.options.session_timeout,
        connect_timeout: timeout,
    }
}

async fn connect_within(hub: &Hub, request: ConnectRequest) -> Result<Arc<dyn Connection>, ConnectError> {
    let timeout = request.connect_timeout;
    tokio::select! {
        biased;
        result = hub.env.connector.connect(request) => result,
        () = hub.env.sleep(timeout) => {
            Err(ConnectError::Unreachable(format!("no answer within {}", words::duration(timeout))))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::sync::{Mutex, PoisonError};

    use super::*;
    use crate::env::BoxFuture;
    use crate::observe::Event;
    use crate::options::Options;
    use crate::session::ConnectionState;
    use crate::zk::Connector;
    use crate::zk::simulated::{SimProcess, World, WorldOptions};
    use crate::{Client, MutexOptions};

    /// A connector for servers of which some refuse us.
    struct Choosy {
        servers: Arc<dyn Connector>,
        refusing: Mutex<BTreeSet<Endpoint>>,
        refused: Mutex<u64>,
    }

    impl Choosy {
        fn refuse(&self, servers: &[Endpoint]) {
            *self.refusing.lock().unwrap_or_else(PoisonError::into_inner) = servers.iter().cloned().collect();
        }

        fn refused(&self) -> u64 {
            *self.refused.lock().unwrap_or_else(PoisonError::into_inner)
        }
    }

    impl Connector for Choosy {
        fn connect(&self, request: ConnectRequest) -> BoxFuture<Result<Arc<dyn Connection>, ConnectError>> {
            let refusing = self.refusing.lock().unwrap_or_else(PoisonError::into_inner);
            if !refusing.contains(&request.endpoint) {
                return self.servers.connect(request);
            }
            *self.refused.lock().unwrap_or_else(PoisonError::into_inner) += 1;
            let error = ConnectError::AuthFailed(format!("{}: not with this password", request.endpoint));
            Box::pin(std::future::ready(Err(error)))
        }
    }

    fn simulate<F: Future>(future: F) -> F::Output {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        builder.enable_time().start_paused(true).build().expect("a runtime").block_on(future)
    }

    fn client(seed: u64) -> (World, SimProcess, Arc<Choosy>, Client) {
        let world = World::new(seed, &WorldOptions::default());
        let process = world.process("a");
        let mut env = process.env();
        let choosy = Arc::new(Choosy {
            servers: env.connector.clone(),
            refusing: Mutex::default(),
            refused: Mutex::default(),
        });
        env.connector = choosy.clone();
        let servers: Vec<_> = world.endpoints().iter().map(ToString::to_string).collect();
        let options = Options { session_timeout: Duration::from_secs(20), ..Options::default() };
        let client = Client::in_env(&servers.join(","), options, env).expect("a client");
        (world, process, choosy, client)
    }

    #[test]
    fn a_server_that_refuses_the_credentials_leaves_the_others() {
        for seed in 0..20 {
            simulate(async {
                let (world, _process, choosy, client) = client(seed);
                let all = world.endpoints();
                choosy.refuse(&[all[0].clone(), all[1].clone()]);
                client.connect().await.expect("the third takes us");
            });
        }
    }

    #[test]
    fn a_lock_outlives_servers_that_refuse_its_session() {
        for seed in 0..20 {
            simulate(async {
                let (world, process, choosy, client) = client(seed);
                let held = client.mutex("/lock").expect("a mutex").acquire().await.expect("held");
                let mut states = client.states();
                choosy.refuse(&world.endpoints());
                process.disconnect();
                let told = states.next().await.expect("told").state;
                assert_eq!(told, ConnectionState::Suspended);
                // No round is the last one while the session lives.
                while choosy.refused() < 10 {
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
                assert!(held.is_valid());
                choosy.refuse(&world.endpoints()[..2]);
                let told = states.next().await.expect("told");
                assert_eq!((told.state, told.same_session), (ConnectionState::Reconnected, true));
                held.verify().await.expect("still held");
            });
        }
    }

    #[test]
    fn refused_by_all_operations_fail_and_the_client_recovers() {
        for seed in 0..20 {
            simulate(async {
                let (world, _process, choosy, client) = client(seed);
                let mutex = client.mutex_with("/lock", MutexOptions::default()).expect("a mutex");
                let mut events = client.events();
                choosy.refuse(&world.endpoints());
                for call in 1..=30 {
                    let error = mutex.acquire().await.expect_err("refused");
                    assert_eq!(error.code(), ErrorCode::NotPermitted, "{error}");
                    for server in world.endpoints() {
                        assert!(error.message().contains(&server.to_string()), "{error}");
                    }
                    // Each has been refused anew, and at leisure.
                    assert!(choosy.refused() >= 3 * call, "{}", choosy.refused());
                }
                assert!(world.now() > Duration::from_secs(10), "{:?}", world.now());
                assert!(matches!(events.try_next(), Some(Event::CredentialsRefused { .. })));
                assert_eq!(events.try_next(), None);
                choosy.refuse(&[]);
                mutex.acquire().await.expect("held").release().await.expect("released");
            });
        }
    }

    #[test]
    fn a_session_that_ends_among_servers_that_refuse_is_lost_and_followed_by_another() {
        simulate(async {
            let (world, process, choosy, client) = client(1);
            let held = client.mutex("/lock").expect("a mutex").acquire().await.expect("held");
            choosy.refuse(&world.endpoints());
            process.disconnect();
            assert!(held.lost().await.is_some());
            let error = client.mutex("/other").expect("a mutex").acquire().await.expect_err("refused");
            assert_eq!(error.code(), ErrorCode::NotPermitted, "{error}");
            choosy.refuse(&[]);
            let again = client.mutex("/lock").expect("a mutex").acquire().await.expect("held again");
            assert!(again.token() > held.token());
        });
    }

    #[test]
    fn a_round_of_failures_is_judged_as_a_whole() {
        let server = |n: u8| Endpoint { host: format!("zk{n}"), port: 2181 };
        let refused = ConnectError::AuthFailed("no".to_owned());
        let bad = ConnectError::BadOptions("bad".to_owned());
        let down = ConnectError::Unreachable("down".to_owned());
        let short = ConnectError::OutOfResources("none left".to_owned());
        for (round, verdict_of) in [
            (vec![&refused, &refused], "NOT_PERMITTED"),
            (vec![&refused, &bad], "NOT_PERMITTED"),
            (vec![&bad, &bad], "hopeless"),
            (vec![&refused, &down], "on"),
            (vec![&bad, &down], "on"),
            (vec![&down], "on"),
            (vec![&down, &short], "OUT_OF_RESOURCES"),
        ] {
            let failures: Vec<_> = (1..).map(server).zip(round.into_iter().cloned()).collect();
            let said = match verdict(&failures) {
                Verdict::TryOn => "on",
                Verdict::InVain(error) => {
                    let expected = ["zk1:2181: no", "none left"];
                    assert!(expected.iter().any(|part| error.message().contains(part)), "{error}");
                    error.code().as_str()
                }
                Verdict::Hopeless(_) => "hopeless",
            };
            assert_eq!(said, verdict_of, "{failures:?}");
        }
    }
}
