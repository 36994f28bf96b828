//! Jute, ZooKeeper's serialisation: big-endian integers, and buffers and strings with a 4-byte length.

/// A frame ended early or holds what no frame can hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("malformed record")]
pub struct Malformed;

/// Reads a record from front to back.
#[derive(Debug, Clone, Copy)]
pub struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    /// Starts at the front of `bytes`.
    #[must_use]
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    /// What has not been read yet.
    #[must_use]
    pub fn rest(&self) -> &'a [u8] {
        self.rest
    }

    /// The next `n` bytes as they are.
    pub fn bytes(&mut self, n: usize) -> Result<&'a [u8], Malformed> {
        let (head, rest) = self.rest.split_at_checked(n).ok_or(Malformed)?;
        self.rest = rest;
        Ok(head)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        self.bytes(N)?.try_into().map_err(|_| Malformed)
    }

    /// A boolean, one byte.
    pub fn bool(&mut self) -> Result<bool, Malformed> {
        Ok(self.array::<1>()?[0] != 0)
    }

    /// A 32-bit integer.
    pub fn int(&mut self) -> Result<i32, Malformed> {
        self.array().map(i32::from_be_bytes)
    }

    /// A 64-bit integer.
    pub fn long(&mut self) -> Result<i64, Malformed> {
        self.array().map(i64::from_be_bytes)
    }

    /// A buffer; null (length -1) reads as empty.
    pub fn buffer(&mut self) -> Result<&'a [u8], Malformed> {
        match self.int()? {
            -1 => Ok(&[]),
            n => self.bytes(usize::try_from(n).map_err(|_| Malformed)?),
        }
    }

    /// A string.
    pub fn string(&mut self) -> Result<&'a str, Malformed> {
        std::str::from_utf8(self.buffer()?).map_err(|_| Malformed)
    }

    /// A list of ACL entries, skipped.
    pub fn skip_acl(&mut self) -> Result<(), Malformed> {
        for _ in 0..self.int()?.max(0) {
            self.int()?;
            self.string()?;
            self.string()?;
        }
        Ok(())
    }

    /// A node's stat.
    pub fn stat(&mut self) -> Result<Stat, Malformed> {
        Ok(Stat {
            czxid: self.long()?,
            mzxid: self.long()?,
            ctime: self.long()?,
            mtime: self.long()?,
            version: self.int()?,
            cversion: self.int()?,
            aversion: self.int()?,
            ephemeral_owner: self.long()?,
            data_length: self.int()?,
            num_children: self.int()?,
            pzxid: self.long()?,
        })
    }
}

/// Writes a record.
#[derive(Debug, Clone, Default)]
pub struct Writer {
    bytes: Vec<u8>,
}

impl Writer {
    /// An empty record.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// A boolean, one byte.
    #[must_use]
    pub fn bool(mut self, value: bool) -> Self {
        self.bytes.push(u8::from(value));
        self
    }

    /// A 32-bit integer.
    #[must_use]
    pub fn int(mut self, value: i32) -> Self {
        self.bytes.extend(value.to_be_bytes());
        self
    }

    /// A 64-bit integer.
    #[must_use]
    pub fn long(mut self, value: i64) -> Self {
        self.bytes.extend(value.to_be_bytes());
        self
    }

    /// A buffer with its length.
    #[must_use]
    pub fn buffer(mut self, value: &[u8]) -> Self {
        self = self.int(i32::try_from(value.len()).unwrap_or(i32::MAX));
        self.bytes.extend(value);
        self
    }

    /// A string with its length.
    #[must_use]
    pub fn string(self, value: &str) -> Self {
        self.buffer(value.as_bytes())
    }

    /// The list of ACL entries that lets anyone do anything.
    #[must_use]
    pub fn open_acl(self) -> Self {
        self.int(1).int(0x1f).string("world").string("anyone")
    }

    /// Bytes without a length.
    #[must_use]
    pub fn raw(mut self, value: &[u8]) -> Self {
        self.bytes.extend(value);
        self
    }

    /// The record.
    #[must_use]
    pub fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }

    /// The record as a frame, its length in front.
    #[must_use]
    pub fn into_frame(self) -> Vec<u8> {
        Writer::new().buffer(&self.bytes).into_bytes()
    }
}

/// A node's stat, as the server gives it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Stat {
    /// The transaction that created the node.
    pub czxid: i64,
    /// The transaction that last changed its data.
    pub mzxid: i64,
    /// When it was created, in the server's milliseconds since 1970.
    pub ctime: i64,
    /// When its data was last changed.
    pub mtime: i64,
    /// Changes of its data.
    pub version: i32,
    /// Changes of its children, as reported: twice the child counter minus the number of children.
    pub cversion: i32,
    /// Changes of its ACL.
    pub aversion: i32,
    /// The session that owns it, or 0.
    pub ephemeral_owner: i64,
    /// Bytes of data.
    pub data_length: i32,
    /// How many children it has.
    pub num_children: i32,
    /// The transaction that last created or deleted a child.
    pub pzxid: i64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_back() {
        let bytes = Writer::new().int(-7).long(1 << 40).bool(true).string("/a").buffer(b"xy").into_frame();
        let mut frame = Reader::new(&bytes);
        let mut body = Reader::new(frame.buffer().expect("a frame"));
        assert_eq!(body.int(), Ok(-7));
        assert_eq!(body.long(), Ok(1 << 40));
        assert_eq!(body.bool(), Ok(true));
        assert_eq!(body.string(), Ok("/a"));
        assert_eq!(body.buffer(), Ok(&b"xy"[..]));
        assert!(body.rest().is_empty() && frame.rest().is_empty());
    }

    #[test]
    fn a_record_that_ends_early_is_malformed() {
        assert_eq!(Reader::new(&[0, 0, 0]).int(), Err(Malformed));
        assert_eq!(Reader::new(&[0, 0, 0, 9, b'x']).string(), Err(Malformed));
        assert_eq!(Reader::new(&[0x80, 0, 0, 0]).buffer(), Err(Malformed));
    }
}
