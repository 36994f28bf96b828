//! One canonical path per resource.

use crate::error::{Error, Result};

/// A canonical absolute path, such as `/locks/order/123`.
///
/// Two spellings of one resource become the same path: `//a//b/` is `/a/b`. What ZooKeeper would refuse, and
/// what could be taken for another path, is refused here: `.` and `..` segments, NUL and control characters.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LockPath(String);

impl LockPath {
    /// Makes `text` canonical.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT` if it is empty, is not absolute, is the root, or has a segment or character that is
    /// not allowed.
    pub fn parse(text: &str) -> Result<Self> {
        let path = canonical(text)?;
        if path == "/" {
            return Err(Error::invalid(format!("path {text:?} is the root; a lock needs a node below it")));
        }
        Ok(Self(path))
    }

    /// The path for a resource of a domain: `/locks/{domain}/{resource}`.
    ///
    /// Both parts are escaped, so that each stays one segment: `a/b` becomes `a%2Fb`. The escape is that of
    /// URLs: every byte outside `A-Z a-z 0-9 - _ ~ .` is written `%XX`, and the segments `.` and `..` are
    /// escaped whole. Equal paths therefore mean equal domains and resources.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT` if a part is empty.
    pub fn resource(domain: &str, resource: &str) -> Result<Self> {
        Ok(Self(format!("/locks/{}/{}", escape("domain", domain)?, escape("resource", resource)?)))
    }

    /// The path as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl std::fmt::Display for LockPath {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

fn escape(what: &str, part: &str) -> Result<String> {
    if part.is_empty() {
        return Err(Error::invalid(format!(
            "the {what} is empty; a lock path needs both a domain and a resource"
        )));
    }
    let all = part == "." || part == "..";
    let mut escaped = String::with_capacity(part.len());
    for byte in part.bytes() {
        let plain =
            byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'~') || (byte == b'.' && !all);
        if plain {
            escaped.push(char::from(byte));
        } else {
            escaped.push_str(&format!("%{byte:02X}"));
        }
    }
    Ok(escaped)
}

/// Makes an absolute path canonical; `/` stays as it is.
pub(crate) fn canonical(text: &str) -> Result<String> {
    let bad = |why: String| Err(Error::invalid(format!("path {text:?} {why}")));
    if text.is_empty() {
        return Err(Error::invalid("the path is empty; write it from the root, such as /locks/order/123"));
    }
    if !text.starts_with('/') {
        return bad(format!("is not absolute; did you mean {:?}?", format!("/{text}")));
    }
    let mut path = String::with_capacity(text.len());
    for segment in text.split('/').filter(|segment| !segment.is_empty()) {
        if segment == "." || segment == ".." {
            return bad(format!(
                "has the segment {segment:?}, which ZooKeeper refuses; write the path in full"
            ));
        }
        if let Some(c) = segment.chars().find(|c| !allowed(*c)) {
            return bad(format!("has the character {:?} (U+{:04X}), which ZooKeeper refuses", c, c as u32));
        }
        path.push('/');
        path.push_str(segment);
    }
    if path.is_empty() {
        path.push('/');
    }
    if path == "/zookeeper" || path.starts_with("/zookeeper/") {
        return bad("lies in ZooKeeper's own tree; use another root".to_owned());
    }
    Ok(path)
}

/// What the server allows in a path: no control characters, private-use characters, or non-characters.
fn allowed(c: char) -> bool {
    !matches!(c as u32, 0..=0x1f | 0x7f..=0x9f | 0xd800..=0xf8ff | 0xfff0..)
}

/// A path's parent; `/` for a child of the root.
pub(crate) fn parent(path: &str) -> &str {
    match path.rfind('/') {
        None | Some(0) => "/",
        Some(slash) => &path[..slash],
    }
}

/// A child's path.
pub(crate) fn join(parent: &str, child: &str) -> String {
    if parent == "/" { format!("/{child}") } else { format!("{parent}/{child}") }
}

/// The path and all its ancestors below the root, from the top down.
pub(crate) fn lineage(path: &str) -> impl Iterator<Item = &str> {
    path.char_indices()
        .skip(1)
        .filter(|&(_, c)| c == '/')
        .map(|(slash, _)| &path[..slash])
        .chain((path != "/").then_some(path))
}

/// Where a client's paths lie on the server: the connect string's chroot, then the namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Prefix(String);

impl Prefix {
    /// Joins a chroot and a namespace, each canonical or `/`.
    pub(crate) fn new(chroot: &str, namespace: &str) -> Self {
        Self(format!("{}{}", chroot.trim_end_matches('/'), namespace.trim_end_matches('/')))
    }

    /// The path on the server.
    pub(crate) fn on_server(&self, path: &LockPath) -> String {
        format!("{}{}", self.0, path.as_str())
    }

    /// The path as the user writes it.
    pub(crate) fn for_user<'a>(&self, on_server: &'a str) -> &'a str {
        on_server.strip_prefix(self.0.as_str()).unwrap_or(on_server)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spellings_of_one_resource_are_one_path() {
        for text in ["/a/b", "//a//b/", "/a/b///", "///a/b"] {
            assert_eq!(LockPath::parse(text).expect(text).as_str(), "/a/b");
        }
    }

    #[test]
    fn refused_paths_say_why() {
        for (text, why) in [
            ("", "is empty"),
            ("a/b", "did you mean \"/a/b\""),
            ("/", "is the root"),
            ("//", "is the root"),
            ("/a/./b", "segment \".\""),
            ("/a/../b", "segment \"..\""),
            ("/a\0", "U+0000"),
            ("/a\nb", "U+000A"),
            ("/a\u{7f}", "U+007F"),
            ("/a\u{e000}", "U+E000"),
            ("/zookeeper/quota", "ZooKeeper's own tree"),
        ] {
            let error = LockPath::parse(text).expect_err(text).to_string();
            assert!(error.contains(why), "{text:?}: {error}");
        }
    }

    #[test]
    fn resources_stay_one_segment() {
        let path = |d, r| LockPath::resource(d, r).map(|p| p.as_str().to_owned());
        assert_eq!(path("order", "123").expect("plain"), "/locks/order/123");
        assert_eq!(path("order", "a/b").expect("slash"), "/locks/order/a%2Fb");
        assert_eq!(path("order", "a%2Fb").expect("escape"), "/locks/order/a%252Fb");
        assert_eq!(path("..", "ä.x").expect("dots"), "/locks/%2E%2E/%C3%A4.x");
        assert!(path("", "x").is_err() && path("x", "").is_err());
    }

    #[test]
    fn lineage_runs_from_the_top_down() {
        assert_eq!(lineage("/a/b/c").collect::<Vec<_>>(), ["/a", "/a/b", "/a/b/c"]);
        assert_eq!(lineage("/").count(), 0);
    }

    #[test]
    fn prefix_goes_on_and_comes_off() {
        let path = LockPath::parse("/x").expect("path");
        for (chroot, namespace, full) in
            [("/", "/", "/x"), ("/c", "/", "/c/x"), ("/", "/n", "/n/x"), ("/c/d", "/n", "/c/d/n/x")]
        {
            let prefix = Prefix::new(chroot, namespace);
            assert_eq!(prefix.on_server(&path), full);
            assert_eq!(prefix.for_user(full), "/x");
        }
    }
}
