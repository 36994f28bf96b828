//! Reads the tables of cases in `core/tables`: one case a line, `name: given => expected`.

/// One case.
pub(crate) struct Table<'a> {
    pub(crate) name: &'a str,
    pub(crate) given: &'a str,
    pub(crate) expected: &'a str,
}

/// The cases of a table, in order. Empty lines and lines that begin with `#` are passed over.
pub(crate) fn rows(text: &str) -> Vec<Table<'_>> {
    let rows: Vec<_> = text
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
        .map(|line| {
            let (name, rest) = line.split_once(": ").unwrap_or_else(|| panic!("no name in {line:?}"));
            let (given, expected) = rest.split_once("=>").unwrap_or_else(|| panic!("no => in {line:?}"));
            Table { name: name.trim(), given: given.trim(), expected: expected.trim() }
        })
        .collect();
    assert!(!rows.is_empty(), "the table is empty");
    rows
}
