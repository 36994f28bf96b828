//! Splits a line into words.

/// A word of a line. A quoted one is never a keyword.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Word {
    /// The word, its quotes and escapes undone.
    pub text: String,
    /// Whether it stood in quotes.
    pub quoted: bool,
}

impl Word {
    /// Whether this is the keyword `text`.
    #[must_use]
    pub fn is(&self, text: &str) -> bool {
        !self.quoted && self.text == text
    }
}

/// Splits a line at white space, outside quotes and parentheses. `#` starts a comment.
///
/// # Errors
/// When a quote or a parenthesis is not closed, or an escape is unknown.
pub fn split(line: &str) -> Result<Vec<Word>, String> {
    let mut words = Vec::new();
    let mut chars = line.chars().peekable();
    while let Some(&first) = chars.peek() {
        match first {
            '#' => break,
            c if c.is_whitespace() => drop(chars.next()),
            '"' => {
                chars.next();
                words.push(Word { text: quoted(&mut chars)?, quoted: true });
            }
            _ => {
                let mut text = String::new();
                let mut depth = 0_u32;
                while let Some(c) = chars.next_if(|c| depth > 0 || !c.is_whitespace()) {
                    match c {
                        '(' => depth += 1,
                        ')' => depth = depth.checked_sub(1).ok_or("a `)` without its `(`")?,
                        _ => {}
                    }
                    text.push(c);
                }
                if depth > 0 {
                    return Err("a `(` without its `)`".to_owned());
                }
                words.push(Word { text, quoted: false });
            }
        }
    }
    Ok(words)
}

/// Reads the rest of a quoted word, the closing quote included.
fn quoted(chars: &mut impl Iterator<Item = char>) -> Result<String, String> {
    let mut text = String::new();
    while let Some(c) = chars.next() {
        match c {
            '"' => return Ok(text),
            '\\' => text.push(match chars.next() {
                Some('0') => '\0',
                Some('n') => '\n',
                Some('t') => '\t',
                Some(c @ ('"' | '\\')) => c,
                other => {
                    return Err(format!("unknown escape `\\{}`", other.map_or(String::new(), String::from)));
                }
            }),
            c => text.push(c),
        }
    }
    Err("a quote that is not closed".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_quotes_parentheses_and_comments() {
        let texts = |line: &str| -> Vec<String> {
            split(line).expect(line).into_iter().map(|word| word.text).collect()
        };
        assert_eq!(texts("  a acquire /jobs  & -> held # why"), ["a", "acquire", "/jobs", "&", "->", "held"]);
        assert_eq!(texts(r#"x "a b\0\"" ""  "#), ["x", "a b\0\"", ""]);
        assert_eq!(texts("check elapsed(a acquire) <= 2"), ["check", "elapsed(a acquire)", "<=", "2"]);
        for bad in ["\"open", "f(a", "a)", r#""\q""#] {
            split(bad).expect_err(bad);
        }
    }
}
