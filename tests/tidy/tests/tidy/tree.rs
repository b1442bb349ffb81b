//! The tree: its files, and their code without comments and literals.

use std::path::{Path, PathBuf};
use std::process::Command;

pub const SOURCE_EXTENSIONS: [&str; 8] = ["rs", "c", "h", "hpp", "f90", "py", "sh", "cpp"];
pub const TEXT_EXTENSIONS: [&str; 6] = ["toml", "md", "yml", "in", "cff", "svg"];

pub struct File {
    /// Relative to the repository, with `/`.
    pub path: String,
    pub text: String,
}

impl File {
    pub fn new(path: &str, text: impl Into<String>) -> Self {
        Self {
            path: path.into(),
            text: text.into(),
        }
    }

    pub fn extension(&self) -> &str {
        Path::new(&self.path)
            .extension()
            .and_then(|e| e.to_str())
            .unwrap_or_default()
    }

    pub fn is_source(&self) -> bool {
        // A script without an extension is a source too, such as testbed/cluster/cluster.
        SOURCE_EXTENSIONS.contains(&self.extension()) || self.text.starts_with("#!/")
    }

    pub fn in_crate_src(&self) -> bool {
        let mut parts = self.path.split('/');
        parts.next() == Some("crates") && parts.nth(1) == Some("src") && self.extension() == "rs"
    }

    pub fn is_test(&self) -> bool {
        self.path.split('/').any(|part| part == "tests")
    }

    pub fn at(&self, line: usize, what: impl std::fmt::Display) -> String {
        format!("{}:{}: {what}", self.path, line + 1)
    }
}

pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../..")
        .canonicalize()
        .expect("the crate lies two levels below the repository's root")
}

/// Every text file that is in the repository or would be added to it.
pub fn tree() -> Vec<File> {
    let root = root();
    // safe.directory: the checkout may belong to another user than the one who runs the tests.
    let listed = Command::new("git")
        .arg("-c")
        .arg(format!("safe.directory={}", root.display()))
        .args(["ls-files", "-z", "-co", "--exclude-standard"])
        .current_dir(&root)
        .output()
        .expect("git must be installed: the tidy test asks it which files belong to the tree");
    assert!(
        listed.status.success(),
        "git ls-files failed, run the tests in a git checkout: {}",
        String::from_utf8_lossy(&listed.stderr)
    );
    let names = String::from_utf8(listed.stdout).expect("file names must be UTF-8");
    let files: Vec<File> = names
        .split_terminator('\0')
        .filter_map(|name| {
            // Deleted but not yet staged, binary, or a directory of another repository: not ours.
            let text = std::fs::read_to_string(root.join(name)).ok()?;
            Some(File::new(name, text))
        })
        .collect();
    assert!(
        files.iter().any(|f| f.path == "Cargo.toml"),
        "git lists no Cargo.toml in {}",
        root.display()
    );
    files
}

/// The text with comments and literals blanked out, lines kept. Enough of Rust's grammar to
/// tell code from prose; a mistake shows up as a failing rule, never as a wrong program.
pub fn code_of(text: &str) -> String {
    let chars: Vec<char> = text.chars().collect();
    let mut code = String::with_capacity(text.len());
    let mut at = 0;
    let blank = |code: &mut String, c: char| code.push(if c == '\n' { '\n' } else { ' ' });
    while at < chars.len() {
        let rest = &chars[at..];
        let end = match rest {
            ['/', '/', ..] => find(rest, 2, |r| r[0] == '\n'),
            ['/', '*', ..] => find(rest, 2, |r| r.starts_with(&['*', '/'])) + 2,
            ['r', '"' | '#', ..] if at == 0 || !is_word(chars[at - 1]) => {
                let hashes = rest[1..].iter().take_while(|c| **c == '#').count();
                if rest.get(1 + hashes) == Some(&'"') {
                    let close = |r: &[char]| {
                        r[0] == '"' && r[1..].iter().take_while(|c| **c == '#').count() >= hashes
                    };
                    find(rest, 2 + hashes, close) + 1 + hashes
                } else {
                    0
                }
            }
            ['"', ..] => {
                let mut end = 1;
                while end < rest.len() && rest[end] != '"' {
                    end += if rest[end] == '\\' { 2 } else { 1 };
                }
                end + 1
            }
            ['\'', '\\', ..] => find(rest, 3, |r| r[0] == '\'') + 1,
            ['\'', _, '\'', ..] => 3,
            _ => 0,
        };
        if end == 0 {
            code.push(chars[at]);
            at += 1;
        } else {
            let end = (at + end).min(chars.len());
            chars[at..end].iter().for_each(|c| blank(&mut code, *c));
            at = end;
        }
    }
    code
}

pub fn find(rest: &[char], from: usize, wanted: impl Fn(&[char]) -> bool) -> usize {
    (from..rest.len())
        .find(|i| wanted(&rest[*i..]))
        .unwrap_or(rest.len())
}

pub fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// Whether `word` stands in `line` with no letter, digit or underscore beside it.
pub fn has_word(line: &str, word: &str) -> bool {
    line.match_indices(word).any(|(at, _)| {
        !line[..at].chars().next_back().is_some_and(is_word)
            && !line[at + word.len()..].chars().next().is_some_and(is_word)
    })
}
