//! Which tests check each promise of `docs/semantics.md`.
//!
//! How: a row is a promise's short name and its tests, separated by semicolons: `package target`,
//! then after a colon modules or tests of that target. A row may also name a file of the tree or a
//! `make` target. Text in parentheses is a remark.
//!
//! Invariants
//! 1. Every promise has exactly one row, and the rows are in the order of the document.
//! 2. Every package, target, module, test and file that a row names exists.
//!
//! Not here: the tests that notice a missing protection (`crates/format/src/sabotage.rs`).

pub const PROOFS: &[(&str, &str)] = &[
    (
        "R1",
        "orcheck-jobs faults: kill_steps, kill_random, damage, errors; orcheck-engine reading; \
         orcheck-jobs session: incremental; orcheck-format format: damage; orcheck-dst blocks; \
         orcheck-jobs power: damage (every bit and length of what is not data), cuts",
    ),
    (
        "R2",
        "orcheck-jobs faults: kill_steps, kill_random, errors, directory, processes; \
         orcheck-jobs session: incremental; orcheck-engine protocol; \
         orcheck-dst blocks (power lost below ext4, xfs and btrfs); \
         orcheck-jobs power: cuts (power lost before every effect; follows what every record \
         refers to); orcheck-io outage",
    ),
    (
        "R3",
        "orcheck-jobs faults: kill_steps, zombie; orcheck-engine protocol; orcheck-dst blocks; \
         orcheck-jobs power: cuts; orcheck-io outage",
    ),
    (
        "R4",
        "orcheck-jobs faults: damage; orcheck-jobs session: resume, optional, choosing (sizes that change), \
         mistakes; orcheck-jobs power: damage; \
         crates/capi/tests/run.sh (sizes that change, in C, C++ and Fortran)",
    ),
    (
        "R5",
        "orcheck-jobs session: mistakes, directories; orcheck-cli cli; \
         crates/capi/tests/c/misuse.c; orcheck-jobs power: damage",
    ),
    (
        "R6",
        "orcheck-jobs faults (every trial has a deadline, and HANG is a verdict): strangers (at \
         every door), partition (a node that is cut off), agents (that stand still); \
         orcheck-net net; orcheck-io process; \
         orcheck-dst schedules (no wake-up is lost, whichever process dies)",
    ),
    (
        "R7",
        "orcheck-jobs faults (LEAK is a verdict of every trial); crates/capi/tests/run.sh; \
         orcheck-jobs power: cuts",
    ),
    (
        "R8",
        "orcheck-io disk; orcheck-jobs session: directories, routed",
    ),
    (
        "R9",
        "orcheck-format format: damage, validation; orcheck-net net; orcheck-dst fuzz",
    ),
    (
        "R10",
        "crates/capi/tests/run.sh; orcheck-cli cli; make demo",
    ),
    (
        "V1",
        "orcheck-client lib: paces, pattern, agreement; orcheck-jobs session: levels",
    ),
    (
        "V2",
        "orcheck-jobs session: each_level_gets, a_step_is_waited_for, a_loss_is_told, \
         no_more_checkpoints_pass, a_close_waits_for_the_newest; \
         orcheck-jobs agent: what_goes_to_one_level",
    ),
    ("V3", "orcheck-jobs session: the_last_checkpoint_goes"),
    (
        "V4",
        "orcheck-engine baseline; orcheck-jobs session: every_checkpoint_that_stays",
    ),
    (
        "V5",
        "orcheck-jobs session: a_restart_takes_the_newest, a_superseded_step",
    ),
    (
        "L1",
        "orcheck-jobs faults: reported; tests/jobs/src/oracle.rs (compares the reports with what \
         is restartable after each fault)",
    ),
    ("W1", "orcheck-jobs session: beside"),
    (
        "W2",
        "orcheck-engine reading: catalog; orcheck-cli cli: names",
    ),
    (
        "F1",
        "orcheck-jobs session: memory_files_come_back, an_open_memory_file, \
         a_memory_file_that_could_not",
    ),
    ("F2", "orcheck-jobs session: a_memory_file_is_written_again"),
    (
        "F3",
        "orcheck-jobs session: memory_files_come_back, memory_files_and_routed_files",
    ),
    ("F4", "orcheck-jobs session: memory_files_survive_a_kill"),
    (
        "M1",
        "orcheck-mount mount: crash, killed_while_it_recovers, what_is_written_while, \
         a_stage_is_used_by",
    ),
    (
        "M2",
        "orcheck-mount mount: killed_at_any_step, a_failed_sync, what_does_not_fit; orcheck-mount \
         lib: after_a_failed_sync",
    ),
    ("M3", "orcheck-mount mount: crash"),
    (
        "M4",
        "orcheck-mount mount: a_loss_in_the_background, names_are_durable, what_does_not_fit, \
         a_failed_sync",
    ),
    (
        "M5",
        "orcheck-mount mount: same, programs, holes_stay, many_files",
    ),
    (
        "M6",
        "orcheck-mount mount: staged_bytes_get, files_shared_between",
    ),
    (
        "M7",
        "orcheck-mount mount: sets; orcheck-mount lib: decide, taking, marks; \
         orcheck-client lib: meeting",
    ),
    (
        "N1",
        "orcheck-engine lib: any_layout; orcheck-engine reading: array; orcheck-jobs session: \
         arrays_are_redistributed, encoded_and_incremental_checkpoints_are_redistributed, \
         what_is_the_same_everywhere_is_read",
    ),
    ("N2", "orcheck-jobs session: lists_are_redistributed"),
    (
        "N3",
        "orcheck-jobs session: overlapping_parts, elements_that_nobody_stored",
    ),
    (
        "N4",
        "orcheck-jobs session: regions_that_need_their_ranks, another_number",
    ),
    (
        "N5",
        "orcheck-jobs session: a_damaged_part, four_nodes_become",
    ),
    ("P1", "orcheck-engine protect; orcheck-jobs session: peers"),
    ("P2", "orcheck-jobs session: any_two_nodes, spare_nodes"),
    (
        "P3",
        "orcheck-jobs faults: survival (16 and 32 nodes, killed for real)",
    ),
    ("P4", "orcheck-jobs session: a_damaged_copy"),
    (
        "P5",
        "orcheck-jobs session: too_few; orcheck-placement holders",
    ),
    (
        "P6",
        "orcheck-jobs faults: kill_steps, errors (workload PEERS)",
    ),
    (
        "P7",
        "orcheck-engine protect: nonsense_costs_only_who_says_it; orcheck-engine keeper",
    ),
    (
        "P8",
        "orcheck-jobs session: every_node_holds; orcheck-engine parity: gathering_is_lost; orcheck-jobs faults: errors, kill_steps",
    ),
    (
        "P9",
        "orcheck-engine parity: rebuilt_files; orcheck-jobs session: any_node_of_a_group, damaged_files_count, losses_beyond; orcheck-jobs faults: losses",
    ),
    ("P10", "orcheck-jobs session: what_a_lost_node_had"),
    (
        "P11",
        "orcheck-placement parity; orcheck-engine parity: gathering_holds_a_bounded",
    ),
    (
        "P12",
        "orcheck-engine reading: repair; orcheck-jobs session: damaged_and_missing",
    ),
    (
        "A1",
        "orcheck-jobs agent (all tests of orcheck-jobs session again)",
    ),
    (
        "A2",
        "orcheck-jobs faults: all_ranks_are_killed, ranks_and_agents",
    ),
    ("A3", "orcheck-jobs faults: ranks_and_agents"),
    (
        "A4",
        "orcheck-jobs agent: a_run_goes_on, what_was_whole; \
         orcheck-jobs faults: ranks_and_agents (room for all)",
    ),
    ("A5", "orcheck-jobs faults: one_agent_stands_still"),
    ("A6", "orcheck-jobs agent: nodes_that"),
    ("A7", "orcheck-jobs faults: agents"),
    (
        "A8",
        "orcheck-jobs faults: names_of_agents; orcheck-cli cli: agent",
    ),
    (
        "A9",
        "orcheck-cli cli: agent; orcheck-jobs faults (LEAK is a verdict of every trial)",
    ),
    (
        "A10",
        "orcheck-jobs agent: kept; orcheck-jobs faults: all_ranks_are_killed, ranks_and_agents; \
         orcheck-pool kept: kept_memory; orcheck-dst fuzz",
    ),
    (
        "A11",
        "orcheck-jobs agent: memory_is_given_back; orcheck-pool kept: secret_memory; \
         orcheck-engine lib: memory_is_kept_only",
    ),
    (
        "C1",
        "orcheck-engine copying: crash (a kill and an error before every effect, every image that \
         a power cut may leave); orcheck-cli cli: copying (kills of the process)",
    ),
    ("C2", "orcheck-engine copying; orcheck-cli cli: copying"),
    ("C3", "orcheck-jobs session: copying"),
    ("C4", "orcheck-engine copying: refused"),
    ("C5", "orcheck-engine copying: refused"),
    ("C6", "orcheck-engine copying"),
    (
        "C7",
        "orcheck-engine copying: refused, at_once; orcheck-jobs session: copying",
    ),
    (
        "T1",
        "orcheck-cli cli: scavenge (ranks killed, agents alive, nodes lost; bytes compared)",
    ),
    ("T2", "orcheck-cli cli: scavenge"),
    ("T3", "orcheck-cli cli: scavenge"),
    (
        "T4",
        "orcheck-cli cli: scavenge; orcheck-engine copying: at_once",
    ),
    (
        "E1",
        "orcheck-jobs session: encoding; orcheck-engine lib: encoding; \
         orcheck-jobs faults: kill_steps, errors (workload ENCODED); orcheck-jobs power: cuts",
    ),
    (
        "E2",
        "orcheck-engine lib: encoding; orcheck-format format: validation",
    ),
    (
        "E3",
        "orcheck-engine forgery; orcheck-jobs session: encoding",
    ),
    (
        "E4",
        "orcheck-jobs session: encoding; orcheck-cli cli: encrypted; crates/capi/tests/run.sh; \
         orcheck-io keyring",
    ),
    (
        "E5",
        "orcheck-jobs session: encoding; orcheck-cli cli: encrypted; crates/capi/tests/run.sh; \
         orcheck-io keyring",
    ),
    (
        "E6",
        "orcheck-format format: validation; orcheck-engine lib: encoding; \
         orcheck-dst fuzz (its target stored_piece)",
    ),
    ("S1", "orcheck-jobs faults: servers"),
    ("S2", "orcheck-staging served; orcheck-cli cli: server"),
    ("S3", "orcheck-net munge; orcheck-cli cli: server"),
    (
        "S4",
        "orcheck-engine reading: scrub; orcheck-cli cli: server",
    ),
    ("S5", "orcheck-cli bin: stop"),
    ("S6", "orcheck-staging quota; orcheck-staging model"),
    (
        "S7",
        "orcheck-cli cli: server; orcheck-staging quota; orcheck-cli bin: stop",
    ),
    ("S8", "orcheck-staging versions"),
    ("S9", "orcheck-cli cli: server; orcheck-net lib"),
    ("S10", "orcheck-jobs served: emptied"),
    ("S11", "orcheck-staging pull; orcheck-staging served"),
    ("H1", "orcheck-jobs faults: errors"),
    (
        "H2",
        "orcheck-jobs faults: one_error_at_every_call_of_a_restart",
    ),
    (
        "H3",
        "orcheck-jobs faults: one_error_at_every_call_of_verify",
    ),
    ("H4", "orcheck-jobs faults: any_system_call_fails"),
    ("H5", "orcheck-jobs faults: interrupted_in_every_call"),
    ("H6", "orcheck-pool uring"),
    ("H7", "orcheck-pool uring"),
    ("H8", "orcheck-jobs faults: small_and_simple_file_systems"),
    ("H9", "orcheck-jobs faults: small_and_simple_file_systems"),
    ("H10", "orcheck-jobs faults: small_and_simple_file_systems"),
    ("H11", "orcheck-jobs faults: small_and_simple_file_systems"),
    ("H12", "orcheck-jobs faults: limits_of_the_process"),
    (
        "H13",
        "orcheck-jobs session: directories; orcheck-io paths; \
         orcheck-jobs faults: really_gone, names_change_beneath_open_directories",
    ),
    (
        "H14",
        "orcheck-jobs faults: something_else; orcheck-cli cli: server",
    ),
    ("H15", "orcheck-engine reading: catalog"),
    (
        "H16",
        "orcheck-engine reading: misreads; orcheck-jobs session: misread; \
         orcheck-jobs served: misread; orcheck-jobs agent: misread \
         (whole jobs, encrypted, incremental, replicated, served, with agents)",
    ),
    ("H17", "orcheck-jobs faults: a_bit_flips_in_the_pool"),
    ("H18", "orcheck-pool lib: uring"),
    ("H19", "orcheck-jobs session: memory"),
    ("H20", "orcheck-jobs faults: copied_only_by_half"),
    ("H21", "orcheck-jobs faults: several_restarts_at_once"),
    ("H22", "orcheck-jobs faults: clocks_that_lie"),
    ("H23", "orcheck-jobs faults: told_to_end_with_a_grace_time"),
    (
        "H24",
        "orcheck-jobs faults: one_rank_stands_still_for_a_while",
    ),
    ("H25", "orcheck-capi callers: forked"),
    ("H26", "orcheck-capi callers: forked"),
    ("H27", "orcheck-capi callers: cancelled"),
    ("H28", "orcheck-jobs faults: every_newer_call_is_missing"),
    (
        "H29",
        "orcheck-jobs faults: killed_on_linux_4_18; \
         tools/old-kernel.sh (repeats the tests of orcheck-io and of the session)",
    ),
];
