//! Exchanges data with the user: settings, keys, and files named on a command line.
//!
//! | file | what |
//! | --- | --- |
//! | `environment.rs` | environment variables, configuration files, files that the user names |
//! | `secret.rs` | the user's key for checkpoints at rest |
//! | `mailbox.rs` | a small file in which processes leave notes for their starter |

mod environment;
mod mailbox;
mod secret;

pub use environment::{
    env_names, env_text, env_var, memory_dir, read_text, temp_dir, working_dir, write_file,
};
pub use mailbox::{Mailbox, drop_note};
pub use secret::{Secret, SecretSource, Wiped, equal};
