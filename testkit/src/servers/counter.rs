//! Forces a node's child counter, the number that sequential names are made of.
//!
//! A create's transaction states the counter that its parent has afterwards, and a server that starts takes the
//! larger of that and its own. So a create and a delete are written behind the stopped server's last
//! transaction, just as it would have written them itself after two thousand million creates.

use std::fs;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::{ServerError, ZooKeeper};
use crate::Observer;
use crate::wire::{Malformed, Op, Reader, Writer};

/// First bytes of a transaction log: its magic number and its format.
const LOG_HEADER: &[u8] = b"ZKLG\0\0\0\x02";
/// The last byte of each entry.
const END_OF_ENTRY: u8 = b'B';

impl ZooKeeper {
    /// Makes `value` the suffix of the next sequential node under `path`. Restarts the server; sessions and
    /// nodes are kept.
    ///
    /// Only for a standalone server, and only upwards.
    ///
    /// # Errors
    /// When the node does not exist, its counter is larger already, or the server does not start again.
    pub fn force_child_counter(&self, path: &str, value: i32) -> Result<(), ServerError> {
        let look = || -> Result<_, ServerError> {
            let failed = |error| ServerError::Data(format!("looking at {path}: {error}"));
            let stat = Observer::connect(self.client_addr()).and_then(|observer| observer.stat(path));
            stat.map_err(failed)?.ok_or_else(|| ServerError::Data(format!("there is no {path}")))
        };
        look()?;
        self.stop();
        append(&self.data_dir(), path, value)?;
        self.restart()?;
        let stat = look()?;
        // The server reports the counter as changes of both kinds: creates + deletes.
        let expected = value.wrapping_mul(2).wrapping_sub(stat.num_children);
        if stat.cversion != expected {
            let found = stat.cversion;
            return Err(ServerError::Data(format!(
                "{path} has cversion {found} and not {expected}: already larger?"
            )));
        }
        Ok(())
    }
}

/// Writes a log of two transactions behind those that are there.
fn append(data: &Path, path: &str, counter: i32) -> Result<(), ServerError> {
    let zxid = last_zxid(data)? + 1;
    let child = if path == "/" { "/forced-counter".to_owned() } else { format!("{path}/forced-counter") };
    let create = header(zxid, Op::Create).string(&child).buffer(&[]).open_acl().bool(false).int(counter);
    let delete = header(zxid + 1, Op::Delete).string(&child);
    let log = Writer::new().raw(LOG_HEADER).long(0);
    let log = entry(entry(log, create), delete).into_bytes();
    fs::write(data.join(format!("log.{zxid:x}")), log).map_err(ServerError::io("writing a transaction log"))
}

fn header(zxid: i64, op: Op) -> Writer {
    let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    let millis = i64::try_from(since_1970.as_millis()).unwrap_or(i64::MAX);
    Writer::new().long(0).int(0).long(zxid).long(millis).int(op.code())
}

fn entry(log: Writer, transaction: Writer) -> Writer {
    let transaction = transaction.into_bytes();
    log.long(i64::from(adler32(&transaction))).buffer(&transaction).raw(&[END_OF_ENTRY])
}

/// The last transaction in the server's files: the last entry of the newest log, or the newest snapshot.
fn last_zxid(data: &Path) -> Result<i64, ServerError> {
    let mut last = 0;
    let mut newest_log = None;
    for file in fs::read_dir(data).map_err(ServerError::io("listing the server's data"))?.flatten() {
        let name = file.file_name();
        let Some((kind, zxid)) = name.to_str().and_then(|name| name.split_once('.')) else { continue };
        let Ok(zxid) = i64::from_str_radix(zxid, 16) else { continue };
        match kind {
            "snapshot" => last = last.max(zxid),
            "log" => newest_log = newest_log.max(Some((zxid, file.path()))),
            _ => {}
        }
    }
    if let Some((_, log)) = newest_log {
        let log = fs::read(&log).map_err(ServerError::io("reading a transaction log"))?;
        let in_log =
            last_entry(&log).map_err(|error| ServerError::Data(format!("the transaction log: {error}")))?;
        last = last.max(in_log.unwrap_or(0));
    }
    Ok(last)
}

fn last_entry(log: &[u8]) -> Result<Option<i64>, Malformed> {
    let mut log = Reader::new(log);
    log.bytes(LOG_HEADER.len() + 8)?;
    let mut last = None;
    // The file is longer than its entries, and ends in zeros.
    while let (Ok(_checksum), Ok(transaction)) = (log.long(), log.buffer())
        && !transaction.is_empty()
    {
        let mut header = Reader::new(transaction);
        let (_session, _xid) = (header.long()?, header.int()?);
        last = Some(header.long()?);
        log.bytes(1)?;
    }
    Ok(last)
}

fn adler32(bytes: &[u8]) -> u32 {
    const MODULUS: u32 = 65_521;
    let (mut a, mut b) = (1, 0);
    for byte in bytes {
        a = (a + u32::from(*byte)) % MODULUS;
        b = (b + a) % MODULUS;
    }
    b << 16 | a
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checksum_is_adler_32() {
        assert_eq!(adler32(b"Wikipedia"), 0x11e6_0398);
        assert_eq!(adler32(b""), 1);
    }

    #[test]
    fn the_last_entry_is_found_before_the_zeros() {
        let log = Writer::new().raw(LOG_HEADER).long(0);
        assert_eq!(last_entry(&log.clone().into_bytes()), Ok(None));
        let log = entry(entry(log, header(7, Op::Delete).string("/a")), header(9, Op::Delete).string("/b"));
        assert_eq!(last_entry(&log.raw(&[0; 100]).into_bytes()), Ok(Some(9)));
    }
}
