//! The users: they acquire locks in every way, hold them for a while, and let go in every way.

use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rand::Rng;
use rand::rngs::SmallRng;

use super::checker::{Checker, SLACK};
use crate::client::Client;
use crate::error::{ErrorCode, Result};
use crate::queue::{HeldLock, OwnerKey};
use crate::recipes::{AcquireOptions, Mutex, Timeout};
use crate::zk::simulated::{SimProcess, World};

/// What all users of a process share.
#[derive(Clone)]
pub(super) struct Program {
    pub world: Arc<World>,
    pub checker: Arc<Checker>,
    pub process: SimProcess,
    pub client: Client,
    pub mutexes: Vec<Mutex>,
    /// When the process last ran again after it had been frozen, in nanoseconds of the world's time.
    pub thawed: Arc<AtomicU64>,
    /// Users that have not come to an end.
    pub busy: Arc<AtomicU64>,
    pub counts: Arc<Counts>,
    pub hold: RangeInclusive<u64>,
    pub patient: bool,
}

/// What users count.
#[derive(Default)]
pub(super) struct Counts {
    pub refusals: AtomicU64,
    pub cancelled: AtomicU64,
}

impl Program {
    /// Starts a user.
    pub fn start_user(&self, number: usize, rng: SmallRng, rounds: usize) {
        let busy = self.busy.clone();
        busy.fetch_add(1, Ordering::Relaxed);
        let user = self.clone().user(number, rng, rounds);
        self.process.spawn(async move {
            user.await;
            busy.fetch_sub(1, Ordering::Relaxed);
        });
    }

    /// How many users have not come to an end.
    pub fn busy(&self) -> u64 {
        self.busy.load(Ordering::Relaxed)
    }

    /// One user, from the first acquire to the last.
    async fn user(self, number: usize, mut rng: SmallRng, rounds: usize) {
        for round in 0..rounds {
            self.pause(rng.random_range(0..800)).await;
            let mutex = self.mutexes[rng.random_range(0..self.mutexes.len())].clone();
            let owner = OwnerKey::new(format!("user {number} round {round}"));
            if let Some(held) = self.acquire(&mutex, &owner, &mut rng).await {
                self.hold(&mutex, &owner, held, &mut rng).await;
            }
            if self.client.is_closed() {
                break;
            }
        }
    }

    async fn pause(&self, millis: u64) {
        self.process.env().sleep(Duration::from_millis(millis)).await;
    }

    async fn acquire(&self, mutex: &Mutex, owner: &OwnerKey, rng: &mut SmallRng) -> Option<HeldLock> {
        let began = self.world.now();
        let within = |timeout| AcquireOptions::default().with_timeout(timeout).with_owner(owner.clone());
        let way = if self.patient { 5 } else { rng.random_range(0..10) };
        let (result, limit) = match way {
            0..=1 => {
                let limit = self.client.options().operation_timeout;
                let result = mutex.try_acquire_with(within(Timeout::Default)).await;
                self.trace(|| format!("tried {}: {}", mutex.path(), describe(&result)));
                (result, Some(limit))
            }
            2..=4 => {
                let limit = Duration::from_millis(rng.random_range(1..6_000));
                let result = mutex.acquire_with(within(Timeout::After(limit))).await.map(Some);
                self.trace(|| format!("acquired {} within {limit:?}: {}", mutex.path(), describe(&result)));
                (result, Some(limit))
            }
            5..=7 => {
                let result = mutex.acquire_with(within(Timeout::Never)).await.map(Some);
                self.trace(|| format!("acquired {}: {}", mutex.path(), describe(&result)));
                (result, None)
            }
            _ => {
                let patience = Duration::from_micros(1_000_000_u64 >> rng.random_range(0..12)) * 3;
                let env = self.process.env();
                let result = tokio::select! {
                    biased;
                    result = mutex.acquire_with(within(Timeout::Never)) => result.map(Some),
                    () = env.sleep(patience) => {
                        self.trace(|| format!("cancelled the acquire of {} after {patience:?}", mutex.path()));
                        self.counts.cancelled.fetch_add(1, Ordering::Relaxed);
                        return None;
                    }
                };
                (result, None)
            }
        };
        if let Some(limit) = limit {
            self.check_time("an acquire", began, limit);
        }
        match result {
            Ok(Some(held)) => {
                self.checker.granted(&self.process, &held);
                Some(held)
            }
            Ok(None) => None,
            Err(error) => {
                self.counts.refusals.fetch_add(1, Ordering::Relaxed);
                let took = self.world.now() - began;
                let fits = match error.code() {
                    ErrorCode::TimedOut => limit.is_some_and(|limit| took >= limit),
                    ErrorCode::ConnectionLost => true,
                    ErrorCode::Closed => self.client.is_closed(),
                    _ => false,
                };
                if !fits {
                    self.checker.broken(|| {
                        format!("{}: an acquire failed after {took:?}: {error}", self.process.name())
                    });
                }
                None
            }
        }
    }

    async fn hold(&self, mutex: &Mutex, owner: &OwnerKey, held: HeldLock, rng: &mut SmallRng) {
        let time = match rng.random_range(0..4) {
            0 if *self.hold.start() == 0 => 0,
            1 if *self.hold.start() == 0 => rng.random_range(0..100),
            _ => rng.random_range(self.hold.clone()),
        };
        match rng.random_range(0..12) {
            0 => self.again(mutex, owner, &held).await,
            1 => {
                let began = self.world.now();
                let verified = held.verify().await;
                self.check_time("a verify", began, self.client.options().operation_timeout);
                self.trace(|| format!("verified {}: {verified:?}", mutex.path()));
            }
            _ => {}
        }
        let time = Duration::from_millis(time);
        let env = self.process.env();
        let lost = tokio::select! {
            biased;
            reason = held.lost() => reason,
            () = env.sleep(time) => None,
        };
        if let Some(reason) = lost {
            self.trace(|| format!("was told of the loss of {}: {reason}", mutex.path()));
        }
        if rng.random_bool(0.25) {
            self.trace(|| format!("drops {}", mutex.path()));
            return drop(held);
        }
        self.release(&held, lost.is_some()).await;
    }

    async fn release(&self, held: &HeldLock, lost: bool) {
        let began = self.world.now();
        self.trace(|| format!("releases {}", held.path()));
        let released = held.release().await;
        self.check_time("a release", began, self.client.options().release_timeout);
        if held.is_valid() {
            self.checker
                .broken(|| format!("{} holds {} after its release", self.process.name(), held.path()));
        }
        let code = released.err().map(|error| error.code());
        if (lost && code != Some(ErrorCode::LockLost)) || code.is_some_and(|c| c != ErrorCode::LockLost) {
            self.checker.broken(|| {
                format!("{}: release of {} ended in {code:?}, lost {lost}", self.process.name(), held.path())
            });
        }
    }

    /// Acquires what its owner holds already.
    async fn again(&self, mutex: &Mutex, owner: &OwnerKey, held: &HeldLock) {
        let options = AcquireOptions::default().with_timeout(Timeout::Never).with_owner(owner.clone());
        let again = mutex.acquire_with(options).await;
        self.trace(|| format!("acquired {} again: {again:?}", mutex.path()));
        match again {
            Ok(again) if again.token() == held.token() => self.release_inner(again).await,
            Ok(other) => {
                self.checker.broken(|| {
                    format!("{} got another grant of {} while it held it", self.process.name(), other.path())
                });
            }
            Err(error) if matches!(error.code(), ErrorCode::LockLost | ErrorCode::Closed) => {}
            Err(error) => {
                self.checker.broken(|| format!("{}: re-entrant acquire: {error}", self.process.name()));
            }
        }
    }

    async fn release_inner(&self, inner: HeldLock) {
        if let Err(error) = inner.release().await
            && error.code() != ErrorCode::LockLost
        {
            self.checker.broken(|| format!("{}: inner release: {error}", self.process.name()));
        }
    }

    /// Whether something took no longer than it may, not counting the time for which the process stood still.
    fn check_time(&self, what: &str, began: Duration, limit: Duration) {
        let thawed = Duration::from_nanos(self.thawed.load(Ordering::Relaxed));
        let (now, due) = (self.world.now(), (began + limit).max(thawed) + SLACK);
        if now > due {
            let took = now - began;
            self.checker.broken(|| format!("{}: {what} within {limit:?} took {took:?}", self.process.name()));
        }
    }

    fn trace(&self, line: impl FnOnce() -> String) {
        self.world.trace(|| format!("{} {}", self.process.name(), line()));
    }
}

fn describe(result: &Result<Option<HeldLock>>) -> String {
    match result {
        Ok(Some(held)) => format!("token {:x}", held.token().0),
        Ok(None) => "not free".to_owned(),
        Err(error) => error.to_string(),
    }
}
