//! What a lock that is free costs.

use std::time::Duration;

use forelock_testkit::proxy::{Mark, Records};
use forelock_testkit::{FaultProxy, Op, Scope};

use crate::support::*;

/// The requests of a kind other than heartbeats since `mark`, in order.
fn requests(proxy: &FaultProxy, mark: Mark) -> Vec<Op> {
    let records: Records = proxy.handle().journal().since(mark);
    records.requests().filter_map(|entry| entry.op()).filter(|op| !is_heartbeat(*op)).collect()
}

async fn one_round_trip(delay: Duration) {
    let server = fast_server();
    let proxy = proxy(&server);
    let client = connected(&proxy.handle().connect_string()).await;
    let mutex = client.mutex(&format!("/one-round-trip/{}", delay.as_millis())).expect("a path");
    soon("first acquire", mutex.acquire()).await.expect("acquired").release().await.expect("released");
    let journal = proxy.handle().journal();
    proxy.handle().delay(delay, delay, Scope::All);
    for _ in 0..10 {
        let mark = journal.mark();
        let held = soon("acquire", mutex.acquire()).await.expect("acquired");
        journal
            .until(mark, SOON, |entry| entry.is_reply_to(Op::GetData))
            .await
            .expect("the watch on the own node");
        assert_eq!(requests(&proxy, mark), [Op::Create2, Op::GetChildren2, Op::GetData]);
        let records = journal.since(mark);
        // Without delay a fast server may answer the first before the second has left.
        let together = delay.is_zero() || records.in_flight_together(Op::Create2, Op::GetChildren2);
        assert!(together, "{records}");
        let granted_by = records.iter().position(|e| e.is_reply_to(Op::GetChildren2)).expect("the list");
        let watched = records.iter().position(|e| e.is_request_of(Op::GetData)).expect("the watch");
        assert!(watched > granted_by, "the watch is asked for with the grant, not before\n{records}");

        let mark = journal.mark();
        soon("release", held.release()).await.expect("released");
        assert_eq!(requests(&proxy, mark), [Op::Delete]);
    }
    client.close().await.expect("closed");
}

#[tokio::test]
async fn acquire_is_one_round_trip_and_release_one_request() {
    one_round_trip(Duration::ZERO).await;
}

/// The socket sends a second small request without waiting for the answer to the first.
#[tokio::test]
async fn acquire_is_one_round_trip_however_long_it_takes() {
    one_round_trip(Duration::from_millis(20)).await;
}

#[tokio::test]
async fn missing_parents_are_made_on_no_node_in_one_more_round_trip() {
    let server = fast_server();
    let proxy = proxy(&server);
    let client = connected(&proxy.handle().connect_string()).await;
    let mark = proxy.handle().journal().mark();
    let mutex = client.mutex("/parents/a/b").expect("a path");
    let held = soon("acquire", mutex.acquire()).await.expect("acquired");
    let ops = requests(&proxy, mark);
    let probe = [Op::Create2, Op::GetChildren2];
    let parents = [Op::Create2; 3];
    assert_eq!(ops[..7], [&probe[..], &parents[..], &probe[..]].concat(), "{ops:?}");
    soon("release", held.release()).await.expect("released");
    assert!(observer(&server).stat("/parents/a/b").expect("asked").is_some(), "roots are never deleted");
}

#[tokio::test]
async fn try_acquire_takes_one_round_trip_and_leaves_nothing() {
    let server = fast_server();
    let proxy = proxy(&server);
    let holder = connected(&server.connect_string()).await;
    let client = connected(&proxy.handle().connect_string()).await;
    let held = soon("held", holder.mutex("/try/one").expect("a path").acquire()).await.expect("acquired");
    let mutex = client.mutex("/try/one").expect("a path");
    let mark = proxy.handle().journal().mark();
    assert!(soon("try", mutex.try_acquire()).await.expect("asked").is_none());
    eventually("cleaned up", || client.metrics().cleanup_pending == 0).await;
    assert_eq!(requests(&proxy, mark), [Op::Create2, Op::GetChildren2, Op::Delete]);
    assert_eq!(observer(&server).children("/try/one").expect("listed").len(), 1);
    soon("release", held.release()).await.expect("released");
    let held = soon("try", mutex.try_acquire()).await.expect("asked").expect("free");
    assert!(held.is_valid());
}

#[tokio::test]
async fn node_data_says_who() {
    let server = fast_server();
    let with_label = options().with_label("month end");
    let client = forelock::Client::with_options(&server.connect_string(), with_label).expect("a client");
    let held = soon("acquire", client.mutex("/who").expect("a path").acquire()).await.expect("acquired");
    let (data, stat) = observer(&server).get(&format!("/who/{}", held.node())).expect("read");
    let data: serde_json::Value = serde_json::from_slice(&data).expect("JSON");
    assert_eq!(data["pid"], std::process::id());
    assert_eq!(data["label"], "month end");
    for key in ["host", "program", "thread"] {
        assert!(data[key].is_string(), "{key}: {data}");
    }
    assert_eq!(held.token().0, stat.czxid);
}
