//! What comes from the user and goes back: settings, keys, and files named on a command line.
//!
//! | file | what |
//! | --- | --- |
//! | `environment.rs` | environment variables, configuration files, files that were asked for by name |
//! | `secret.rs` | the user's key for checkpoints at rest |
//! | `mailbox.rs` | a small file in which processes leave notes for the one that started them |

mod environment;
mod mailbox;
mod secret;

pub use environment::{
    env_names, env_text, env_var, memory_dir, read_text, temp_dir, working_dir, write_file,
};
pub use mailbox::{Mailbox, drop_note};
pub use secret::{Secret, SecretSource, Wiped, equal};
