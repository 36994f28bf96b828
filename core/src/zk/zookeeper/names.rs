//! Host names and their addresses: one lookup of a name at a time, and its last answer kept.
//!
//! A name server that is down together with the connection must not cost a session: whoever has one to save goes
//! to the addresses of before at once, while the name is being looked up for the next attempt.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;
use tokio::time::Instant;

use crate::env::BoxFuture;
use crate::words;
use crate::zk::{ConnectError, Endpoint};

/// Asks for the addresses of a name.
pub type Lookup = Arc<dyn Fn(Endpoint) -> BoxFuture<io::Result<Vec<SocketAddr>>> + Send + Sync>;

/// The addresses, or what was said instead; none while the answer is out.
type Answer = Option<Result<Vec<SocketAddr>, String>>;

pub(super) struct Names {
    lookup: Lookup,
    known: Mutex<BTreeMap<Endpoint, Name>>,
}

#[derive(Default)]
struct Name {
    /// As of the last lookup that succeeded.
    addresses: Vec<SocketAddr>,
    /// The lookup under way: the system's can hang for half a minute, and holds a thread for as long.
    asked: Option<watch::Receiver<Answer>>,
}

impl Names {
    /// Names as the system resolves them.
    pub(super) fn of_the_system() -> Arc<Self> {
        Self::new(Arc::new(|endpoint: Endpoint| {
            Box::pin(async move {
                Ok(tokio::net::lookup_host((endpoint.host.as_str(), endpoint.port)).await?.collect())
            })
        }))
    }

    pub(super) fn new(lookup: Lookup) -> Arc<Self> {
        Arc::new(Self { lookup, known: Mutex::default() })
    }

    /// The addresses of a server, by `deadline`. In a hurry those of before will do, and otherwise too if there is
    /// no answer in good time.
    pub(super) async fn resolve(
        self: &Arc<Self>,
        endpoint: &Endpoint,
        hurry: bool,
        deadline: Instant,
    ) -> Result<Vec<SocketAddr>, ConnectError> {
        if let Ok(address) = endpoint.host.parse::<IpAddr>() {
            return Ok(vec![SocketAddr::new(address, endpoint.port)]);
        }
        let (before, answer) = self.ask(endpoint);
        if hurry && !before.is_empty() {
            return Ok(before);
        }
        let began = Instant::now();
        let mut patience = deadline.saturating_duration_since(began);
        if !before.is_empty() {
            patience /= 3;
        }
        let why = match tokio::time::timeout(patience, wait_for(answer)).await {
            Ok(Ok(addresses)) => return Ok(addresses),
            Ok(Err(why)) => why,
            Err(_) => format!("no name server answered within {}", words::duration(patience)),
        };
        if before.is_empty() {
            return Err(ConnectError::Unresolvable(format!("{} ({why})", endpoint.host)));
        }
        tracing::debug!(
            "{} does not resolve ({why}); trying the addresses that it had before",
            endpoint.host
        );
        Ok(before)
    }

    /// The addresses of before, and the answer to a lookup that is under way from now on.
    fn ask(self: &Arc<Self>, endpoint: &Endpoint) -> (Vec<SocketAddr>, watch::Receiver<Answer>) {
        let mut known = self.known();
        let name = known.entry(endpoint.clone()).or_default();
        let before = name.addresses.clone();
        // A lookup whose runtime was shut down has lost its sender.
        if let Some(asked) = name.asked.as_ref().filter(|asked| asked.has_changed().is_ok()) {
            return (before, asked.clone());
        }
        let (tell, answer) = watch::channel(None);
        name.asked = Some(answer.clone());
        drop(known);
        let (names, endpoint) = (self.clone(), endpoint.clone());
        tokio::spawn(async move {
            let found = (names.lookup)(endpoint.clone()).await;
            let found = match found {
                Ok(addresses) if addresses.is_empty() => Err("no address".to_owned()),
                Ok(addresses) => Ok(addresses),
                Err(error) => Err(error.to_string()),
            };
            let mut known = names.known();
            let name = known.entry(endpoint).or_default();
            name.asked = None;
            if let Ok(addresses) = &found {
                name.addresses.clone_from(addresses);
            }
            drop(known);
            tell.send_replace(Some(found));
        });
        (before, answer)
    }

    fn known(&self) -> MutexGuard<'_, BTreeMap<Endpoint, Name>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn wait_for(mut answer: watch::Receiver<Answer>) -> Result<Vec<SocketAddr>, String> {
    match answer.wait_for(Option::is_some).await.as_deref() {
        Ok(Some(found)) => found.clone(),
        _ => Err("the lookup was given up".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    use super::*;

    /// A name server that gives the next of `answers` to each lookup, and then none at all.
    fn scripted(answers: Vec<io::Result<Vec<SocketAddr>>>) -> (Arc<Names>, Arc<AtomicUsize>) {
        let asked = Arc::new(AtomicUsize::new(0));
        let (count, answers) = (asked.clone(), Mutex::new(answers.into_iter()));
        let names = Names::new(Arc::new(move |_| {
            count.fetch_add(1, Ordering::Relaxed);
            let answer = answers.lock().unwrap_or_else(PoisonError::into_inner).next();
            Box::pin(async move {
                match answer {
                    Some(answer) => answer,
                    None => std::future::pending().await,
                }
            })
        }));
        (names, asked)
    }

    fn address(last: u8) -> SocketAddr {
        SocketAddr::from(([10, 0, 0, last], 2181))
    }

    fn zk() -> Endpoint {
        Endpoint { host: "zk1".to_owned(), port: 2181 }
    }

    fn within(seconds: u64) -> Instant {
        Instant::now() + Duration::from_secs(seconds)
    }

    #[tokio::test(start_paused = true)]
    async fn whoever_is_in_a_hurry_goes_to_the_addresses_of_before() {
        let (names, asked) = scripted(vec![Ok(vec![address(1)]), Ok(vec![address(2)])]);
        assert_eq!(names.resolve(&zk(), true, within(5)).await, Ok(vec![address(1)]), "none of before");
        let began = Instant::now();
        assert_eq!(names.resolve(&zk(), true, within(5)).await, Ok(vec![address(1)]));
        assert_eq!(began.elapsed(), Duration::ZERO);
        // The lookup beside it has told of a change by the next attempt.
        tokio::task::yield_now().await;
        assert_eq!(names.resolve(&zk(), true, within(5)).await, Ok(vec![address(2)]));
        // From now on the name server is silent; one lookup hangs for all.
        for _ in 0..10 {
            assert_eq!(names.resolve(&zk(), true, within(5)).await, Ok(vec![address(2)]));
            tokio::task::yield_now().await;
        }
        assert_eq!((began.elapsed(), asked.load(Ordering::Relaxed)), (Duration::ZERO, 3));
    }

    #[tokio::test(start_paused = true)]
    async fn a_new_session_waits_for_the_name_but_not_in_vain() {
        let broken = || Err(io::Error::other("the name server is on fire"));
        let (names, _) = scripted(vec![broken(), Ok(vec![address(1)]), broken()]);
        let error = names.resolve(&zk(), false, within(6)).await.expect_err("broken").to_string();
        assert!(error.contains("zk1 (the name server is on fire)"), "{error}");
        assert_eq!(names.resolve(&zk(), false, within(6)).await, Ok(vec![address(1)]));
        assert_eq!(names.resolve(&zk(), false, within(6)).await, Ok(vec![address(1)]), "broken again");
        let began = Instant::now();
        assert_eq!(names.resolve(&zk(), false, within(6)).await, Ok(vec![address(1)]), "silent");
        assert_eq!(began.elapsed(), Duration::from_secs(2));
    }

    #[tokio::test(start_paused = true)]
    async fn a_silent_name_server_is_named_as_such() {
        let (names, _) = scripted(Vec::new());
        let error = names.resolve(&zk(), true, within(4)).await.expect_err("silent").to_string();
        assert_eq!(error, "the host name does not resolve: zk1 (no name server answered within 4 s)");
    }
}
