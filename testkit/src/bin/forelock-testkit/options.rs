//! Options and words, read into types.

use std::str::FromStr;

/// Reads `--name value` pairs and flags, each handed to `take`, which says whether it knows the name. A flag does
/// not ask for its value.
pub fn read(
    mut arguments: impl Iterator<Item = String>,
    mut take: impl FnMut(&str, &mut dyn FnMut() -> Result<String, String>) -> Result<bool, String>,
) -> Result<(), String> {
    while let Some(name) = arguments.next() {
        let mut value = || arguments.next().ok_or_else(|| format!("{name} needs a value"));
        if !take(&name, &mut value)? {
            return Err(format!("no such option: {name}"));
        }
    }
    Ok(())
}

/// Reads one word.
pub fn parse<T: FromStr>(what: &str, text: &str) -> Result<T, String> {
    text.parse().map_err(|_| format!("{text:?} is not {what}"))
}
