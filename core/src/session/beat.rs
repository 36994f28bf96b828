//! Heartbeats: what keeps the lease of a session going while its connection is up.

use std::time::Duration;

use super::Heartbeat;
use super::hub::{Hub, Link};
use super::lease::LeaseClock;
use crate::zk::{Operation, Reply, ZkError};

/// Sends heartbeats and notes their answers, until the connection can't be relied on. Says why.
pub(super) async fn beat(hub: &Hub, link: &Link, lease: &mut LeaseClock) -> &'static str {
    let mut last_sent = hub.env.now();
    // How many in a row an overloaded server has refused, and when the next one is due for that.
    let mut refusals = 0;
    let mut ask_again = None;
    loop {
        let due = ask_again.take().unwrap_or_else(|| lease.next_heartbeat(last_sent));
        hub.env.sleep_until(Some(due)).await;
        let sent = hub.env.now();
        let reply = tokio::select! {
            biased;
            reply = heartbeat(hub, link) => reply,
            () = hub.env.sleep(patience(lease)) => return "a heartbeat was not answered in time",
        };
        let now = hub.env.now();
        match reply {
            // Overloaded, and alive: what it refused proves nothing, and leaving it would add to its load.
            Err(ZkError::Throttled) => {
                ask_again = Some(lease.ask_again(now, refusals));
                refusals += 1;
                continue;
            }
            Err(error) if error.outcome_unknown() || error.can_retry() => return "a heartbeat failed",
            _ if link.connection.is_read_only() => {}
            // Any answer of the leader's will do, a refusal too: it went the same way.
            Ok(()) | Err(_) => {
                lease.answered(sent, now);
                if !link.session.set_deadline(lease.deadline()) {
                    return "the lease ran out";
                }
            }
        }
        refusals = 0;
        last_sent = sent;
    }
}

/// Sends one heartbeat. It is on the wire when this returns.
fn heartbeat(hub: &Hub, link: &Link) -> Reply<()> {
    match hub.options.heartbeat {
        // A server in read-only mode has no leader to ask.
        _ if link.connection.is_read_only() => {
            let reply = link.connection.exists("/");
            Box::pin(async move { reply.await.map(drop) })
        }
        Heartbeat::Session => link.connection.sync("/"),
        Heartbeat::Quorum => {
            link.connection.multi(vec![Operation::Check { path: "/".to_owned(), version: None }])
        }
    }
}

/// How long to wait for an answer before another server is tried: a third of the time that the lease leaves.
fn patience(lease: &LeaseClock) -> Duration {
    (lease.slack() / 3).max(Duration::from_millis(100)).min(lease.timeout() / 3)
}

#[cfg(test)]
mod tests {
    use crate::client::Client;
    use crate::options::Options;
    use crate::session::{ConnectionState, Heartbeat};
    use crate::zk::simulated::{Span, World, WorldOptions};
    use std::time::Duration;

    const T: Duration = Duration::from_secs(6);

    fn in_world(options: &WorldOptions, test: impl AsyncFnOnce(World)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
        runtime.expect("a runtime").block_on(async { test(World::new(7, options)).await });
    }

    fn client(world: &World, tick: Duration, heartbeat: Heartbeat) -> Client {
        let servers: Vec<_> = world.endpoints().iter().map(ToString::to_string).collect();
        let options = Options::default().with_session_timeout(T).with_tick(tick).with_heartbeat(heartbeat);
        Client::in_env(&servers.join(","), options, world.process("a").env()).expect("a client")
    }

    /// How many heartbeats have been sent, as the trace tells.
    fn heartbeats(world: &World) -> usize {
        world
            .trace_lines()
            .iter()
            .filter(|line| line.contains("sends Sync") || line.contains("sends Multi"))
            .count()
    }

    #[test]
    fn heartbeats_are_spaced_where_a_round_trip_takes_a_tick_or_longer() {
        for (round_trip, tick) in [(10, 200), (300, 200), (10, 1), (2, 1)] {
            let latency = Span::millis(round_trip / 2, round_trip / 2);
            let options = WorldOptions {
                servers: 1,
                tick: Duration::from_secs(1),
                client_latency: latency,
                trace: 100_000,
                ..WorldOptions::default()
            };
            in_world(&options, async |world| {
                let client = client(&world, Duration::from_millis(tick), Heartbeat::Session);
                let mut states = client.states();
                client.connect().await.expect("connected");
                tokio::time::sleep(10 * T).await;
                let sent = heartbeats(&world);
                assert!((100..=250).contains(&sent), "{round_trip} {tick}: {sent} in ten timeouts");
                assert_eq!(states.try_next().expect("a change").state, ConnectionState::Connected);
                assert_eq!(states.try_next(), None, "{round_trip} {tick}");
            });
        }
    }

    #[test]
    fn an_overloaded_server_does_not_cost_the_session() {
        for heartbeat in [Heartbeat::Session, Heartbeat::Quorum] {
            let options = WorldOptions {
                servers: 1,
                tick: Duration::from_secs(1),
                trace: 100_000,
                ..WorldOptions::default()
            };
            in_world(&options, async |world| {
                let client = client(&world, Duration::from_millis(1_000), heartbeat);
                let mut states = client.states();
                client.connect().await.expect("connected");
                world.set_throttling(0, 0.6);
                tokio::time::sleep(50 * T).await;
                assert_eq!(states.try_next().expect("a change").state, ConnectionState::Connected);
                assert_eq!(states.try_next(), None, "{heartbeat:?}");
                // A server that refuses everything is not flooded.
                world.set_throttling(0, 1.0);
                let before = heartbeats(&world);
                tokio::time::sleep(T).await;
                let sent = heartbeats(&world) - before;
                assert!(sent < 70, "{heartbeat:?}: {sent} in one timeout");
                assert_eq!(states.next().await.expect("a change").state, ConnectionState::Suspended);
            });
        }
    }
}
