//! Addresses in comments: the file, module or crate that a comment names in backticks exists, so a
//! reader who follows it arrives.

use crate::tree::File;

/// Where comments may point: every path of the tree.
pub struct Addresses<'t> {
    paths: Vec<&'t str>,
}

impl<'t> Addresses<'t> {
    pub fn of(tree: &'t [File]) -> Self {
        let paths = tree.iter().map(|file| file.path.as_str());
        Self {
            paths: paths.collect(),
        }
    }

    /// Comments of a Rust file that name what is not there.
    pub fn dead(&self, file: &File) -> Vec<String> {
        if file.extension() != "rs" {
            return vec![];
        }
        let mut found = vec![];
        for (at, line) in file.text.lines().enumerate() {
            let Some((_, comment)) = line.split_once("//") else {
                continue;
            };
            for name in comment.split('`').skip(1).step_by(2) {
                if !self.leads_somewhere(name) {
                    found.push(file.at(
                        at,
                        format!("the comment names `{name}`, which does not exist. Name what is there now"),
                    ));
                }
            }
        }
        found
    }

    fn leads_somewhere(&self, name: &str) -> bool {
        let is_word = |text: &str| {
            !text.is_empty()
                && text
                    .chars()
                    .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_' || c == '-')
        };
        let folders = [
            "bench/",
            "crates/",
            "docs/",
            "examples/",
            "fuzz/",
            "testbed/",
            "tests/",
            "tools/",
        ];
        let is_pattern = name.contains(['*', '{', '<', ' ', '…']);
        if folders.iter().any(|folder| name.starts_with(folder)) && !is_pattern {
            // From the root, or from the crate that the comment is in.
            let name = format!("/{}", name.trim_end_matches('/'));
            let (below, source) = (format!("{name}/"), format!("{name}.rs"));
            return self.paths.iter().any(|path| {
                let path = format!("/{path}");
                path.ends_with(&name) || path.ends_with(&source) || path.contains(&below)
            });
        }
        if name.ends_with(".rs") && name.split('/').all(|part| is_word(&part.replace('.', "_"))) {
            let below = format!("/{name}");
            return self
                .paths
                .iter()
                .any(|path| *path == name || path.ends_with(&below));
        }
        if let Some(name) = name
            .strip_prefix("orcheck-")
            .or(name.strip_prefix("orcheck_"))
        {
            let name = name.split("::").next().unwrap_or_default();
            return !is_word(name) || name.contains('_') || self.has_crate(name);
        }
        let mut parts = name.split("::");
        match (parts.next(), parts.next()) {
            (Some(home), Some(module))
                if is_word(home) && is_word(module) && self.has_crate(home) =>
            {
                self.has_module(home, module)
            }
            _ => true,
        }
    }

    fn has_crate(&self, name: &str) -> bool {
        let manifests = ["crates", "tests"].map(|folder| format!("{folder}/{name}/Cargo.toml"));
        self.paths
            .iter()
            .any(|path| manifests.iter().any(|manifest| manifest == path))
    }

    /// Whether a crate has a room, or a module beside its rooms, of this name.
    fn has_module(&self, home: &str, module: &str) -> bool {
        let file = format!("crates/{home}/src/{module}.rs");
        self.paths.contains(&file.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_exists_leads_somewhere() {
        let tree = [
            "crates/io/Cargo.toml",
            "crates/io/src/disk.rs",
            "crates/io/src/disk/file.rs",
        ]
        .map(|path| File::new(path, ""));
        let addresses = Addresses::of(&tree);
        for name in [
            "file.rs",
            "disk/file.rs",
            "io::disk",
            "orcheck-io",
            "std::io",
            "orcheck_io::disk",
            "x",
        ] {
            assert!(addresses.leads_somewhere(name), "{name}");
        }
        for name in [
            "bench/lbm",
            "crates/io/src/dir.rs",
            "dir.rs",
            "io/file.rs",
            "io::file",
            "orcheck-net",
            "orcheck_net::x",
        ] {
            assert!(!addresses.leads_somewhere(name), "{name}");
        }
        let file = File::new("a.rs", "x // see `file.rs`, not `lost\u{2e}rs`");
        assert_eq!(addresses.dead(&file).len(), 1);
    }
}
