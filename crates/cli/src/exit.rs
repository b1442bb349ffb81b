//! Defines the exit codes of `orcheck`, which are frozen: scripts may rely on each number in every
//! version.
//!
//! Invariants: a number never changes its meaning; a new meaning gets a new number.
//!
//! Not here: which code a command returns; each command's file says so.

use orcheck_format::ErrorKind;

/// Everything that was asked was done, and all is well.
pub const OK: u8 = 0;
/// Something failed that has no code of its own.
pub const FAILURE: u8 = 1;
/// The command line or an argument is wrong.
pub const USAGE: u8 = 2;
/// Part of what was asked was done, or damage was found that loses no data.
pub const PARTIAL: u8 = 3;
/// The job has no checkpoint to restore.
pub const NOTHING: u8 = 4;
/// Data is damaged.
pub const CORRUPT: u8 = 5;
/// Data is damaged, and an older checkpoint is good.
pub const CORRUPT_OLDER_GOOD: u8 = 6;
/// Another run holds the job, or a newer run has superseded what was asked for.
pub const HELD: u8 = 7;
/// A file of a newer, incompatible version.
pub const INCOMPATIBLE: u8 = 8;
/// No space left, or a quota is used up.
pub const NO_SPACE: u8 = 9;
/// The job, directory, step, rank, region or command does not exist.
pub const NOT_FOUND: u8 = 10;
/// A deadline passed.
pub const TIMEOUT: u8 = 12;
/// The job was asked to halt, and did.
pub const HALTED: u8 = 13;
/// `prove`: a restart did not bring back all that the program computes from.
pub const DIFFERS: u8 = 14;
/// A directory that may hold what was asked for cannot be read: no permission, no answer, or a
/// failing disk.
pub const UNREACHABLE: u8 = 15;
/// Stopped by SIGINT.
pub const INTERRUPTED: u8 = 130;
/// Stopped by SIGTERM.
pub const TERMINATED: u8 = 143;

/// The table that `--help` and the manual page print.
pub const TABLE: &str = "\
Exit codes:
    0  done, all well
    1  failure without a code of its own
    2  wrong usage or argument
    3  partial: part of it was done, or damage was found that loses no data
    4  nothing to restore: the job has no committed checkpoint
    5  corrupt: data is damaged
    6  corrupt, but an older checkpoint is good
    7  held by another run, superseded by a newer one, or two runs to choose
       between
    8  incompatible: written by a newer version
    9  no space left, or quota used up
   10  not found: job, directory, step, rank, region or command
   12  timeout: a deadline passed
   13  halted: told to stop by `orcheck halt`, a signal or orc_should_stop();
       start it again to continue
   14  differs: `orcheck prove` found regions that a restart does not bring back
   15  unreachable: a directory that may hold it cannot be read (permission,
       server, disk); nothing is known to be lost
  130  stopped by SIGINT
  143  stopped by SIGTERM

`orcheck run` ends with the exit code of the command's last run (128 + n when signal n killed it), but with 13 when a job that was \
told to stop ended well.";

/// The code for an error that a command does not treat specially.
pub fn of(kind: ErrorKind) -> u8 {
    match kind {
        ErrorKind::Invalid => USAGE,
        ErrorKind::NotFound => NOT_FOUND,
        ErrorKind::NoSpace => NO_SPACE,
        ErrorKind::Corrupt => CORRUPT,
        ErrorKind::Fenced => HELD,
        ErrorKind::Unsupported => INCOMPATIBLE,
        ErrorKind::Unavailable | ErrorKind::Internal => FAILURE,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_frozen() {
        // Breaks if: any number is changed; scripts of users depend on each.
        let codes = [
            OK,
            FAILURE,
            USAGE,
            PARTIAL,
            NOTHING,
            CORRUPT,
            CORRUPT_OLDER_GOOD,
            HELD,
            INCOMPATIBLE,
            NO_SPACE,
            NOT_FOUND,
            TIMEOUT,
            HALTED,
            DIFFERS,
            UNREACHABLE,
            INTERRUPTED,
            TERMINATED,
        ];
        assert_eq!(
            codes,
            [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 13, 14, 15, 130, 143]
        );
        for code in codes {
            assert!(
                TABLE
                    .lines()
                    .any(|line| line.trim_start().starts_with(&format!("{code}  "))),
                "{code} is not in the table"
            );
        }
    }

    #[test]
    fn every_kind_has_a_code() {
        let codes: Vec<u8> = ErrorKind::ALL.iter().map(|&kind| of(kind)).collect();
        assert_eq!(codes, [2, 10, 1, 9, 5, 7, 8, 1]);
    }
}
