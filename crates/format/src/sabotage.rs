//! Declares switches that remove one protection each, to prove that the tests would notice.
//!
//! How: the code calls [`off`] at the single place of a protection. In every build that is shipped
//! or tested, the answer is a constant `false` and the compiler removes the check. A build with
//! `--cfg orcheck_sabotage` reads the environment once, at the start of each process:
//! `ORCHECK_SABOTAGE=crc-block` removes the CRC of blocks. `make sabotage` does so with every
//! switch and requires that at least one test fails.
//!
//! Invariants
//! 1. The code checks a switch at the place of its protection and nowhere else; a test of the
//!    source tree verifies this.
//! 2. Every switch serves one promise of `docs/semantics.md`; the generated `docs/protections.md`
//!    lists the switches of each promise with their tests.
//!
//! Not here: the faults that a protection is against (the modules that check the switch).

/// A protection that can be removed.
///
/// Declared as: name in the environment; what is missing without it; the tests that must notice,
/// each as `package target filter`, tried in this order before all others.
macro_rules! switches {
    ($($switch:ident = $name:literal, $gone:literal, $tests:literal;)*) => {
        /// A protection that can be removed.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Switch {
            $(#[doc = $gone] $switch,)*
        }

        impl Switch {
            /// Every switch: its name, what is missing without it, and the tests that must notice
            /// (`package target filter`, separated by semicolons).
            pub const ALL: &'static [(Switch, &'static str, &'static str, &'static str)] =
                &[$((Switch::$switch, $name, $gone, $tests),)*];
        }
    };
}

switches! {
    // What is read is what was written.
    CrcBlock = "crc-block", "the CRC of headers, rank headers and trailers", "orcheck-format format every_flipped_bit";
    CrcRankRecord = "crc-rank-record", "the CRC of a rank record", "orcheck-format format every_flipped_bit";
    CrcEnvelope = "crc-envelope", "the CRC of commit records, claims and notes of resumption", "orcheck-format format every_flipped_bit";
    CrcExtent = "crc-extent", "the CRC of data", "orcheck-engine reading stream; orcheck-jobs faults damaged_structures";
    Digest = "digest", "the digest of the manifest that the commit record names", "orcheck-engine reading another_well_formed";
    DigestRebuilt = "digest-rebuilt", "the digest of a manifest that was rebuilt", "orcheck-engine reading cannot_be_rebuilt; orcheck-engine reading flipped_bit";
    HeaderFields = "header-fields", "that a container is of the job, step and epoch of its commit record", "orcheck-engine reading another_step; orcheck-engine reading swapped";
    HeaderInTrailer = "header-in-trailer", "that header and trailer are of one file", "orcheck-engine reading header_of_another";
    NameInRecord = "name-in-record", "that a commit record stands under its own name", "orcheck-engine reading renamed";
    RunOfRecord = "run-of-record", "that a commit record is of the run that claimed its epoch", "orcheck-engine reading another_run";
    CrcStored = "crc-stored", "the CRC of encoded bytes as they are stored", "orcheck-engine lib every_bit_of_an_encrypted";
    CrcDecoded = "crc-decoded", "the CRC of bytes that were decoded", "orcheck-engine lib decoded_wrongly";
    Mark = "mark", "the marks at the beginning of headers, records and trailers", "orcheck-format format kinds_are_not";
    RecordKind = "record-kind", "that a record is of the kind that was looked for", "orcheck-format format kinds_are_not";
    RecordVersion = "record-version", "that a record of another version is refused", "orcheck-format format unknown_versions";
    FrameVersion = "frame-version", "that a frame of another version is refused", "orcheck-format format unknown_versions";
    PoolVersion = "pool-version", "that a pool of another version is refused", "orcheck-pool lib head::";
    UnknownFeature = "unknown-feature", "that a file with features unknown here is refused", "orcheck-format format unknown_incompatible";
    FieldOnce = "field-once", "that no field appears twice", "orcheck-format lib keys_must";
    OneSpelling = "one-spelling", "that a number has one spelling", "orcheck-format lib loose_encodings";
    EveryRankOnce = "every-rank-once", "that a commit record has every rank in exactly one container", "orcheck-format format commit_records";
    LevelInHeader = "level-in-header", "that a container is of the level that was looked for", "orcheck-engine reading two_levels";
    JobInRecord = "job-in-record", "that records of another job are left alone", "orcheck-engine reading stranger_files";
    TargetLength = "target-length", "that memory to restore into is as long as the region", "orcheck-engine reading target_of_another_size";
    ProvenTwice = "proven-twice", "that a long extent, which is read twice, is the same both times", "orcheck-engine reading changes_while";
    RegionFits = "region-fits", "that a region is restored only into one that was declared alike", "orcheck-jobs session a_region_that_changed";
    RankCount = "rank-count", "that a rank of another number of ranks does not take what its number stored", "orcheck-jobs session another_number";
    AllRanksThere = "all-ranks-there", "that every rank of a checkpoint is in a container when other ranks read it", "orcheck-engine reading a_rank_that_is_in_no_container";
    PlaceInUse = "place-in-use", "that an extent stays where the ranks of a node copy it from", "orcheck-engine lib shared::tests";
    SharedVerified = "shared-verified", "that what another rank of the node has read is still what was verified", "orcheck-engine lib shared::tests";
    WantedTwice = "wanted-twice", "that an element which a rank wants in two places comes to both", "orcheck-engine lib any_layout";
    ListTotal = "list-total", "that every item of a list goes to one rank", "orcheck-jobs session lists_are_redistributed";
    PartsOverlap = "parts-overlap", "that of two ranks' copies of an element none is taken unless the program allows it", "orcheck-jobs session overlapping_parts";
    RecordOfStream = "record-of-stream", "that a rank's record is of the stream that it sent", "orcheck-engine reading another_stream";
    DescriptorCrc = "descriptor-crc", "that a descriptor which was changed in the pool is refused", "orcheck-engine lib descriptors_cross";
    PoolChecked = "pool-checked", "that what was staged is still in the pool when it is encoded, sent or checked", "orcheck-jobs session stray_write";
    RingFull = "ring-full", "that an entry of a ring stays until it was read", "orcheck-pool pool behaves_like_a_queue";
    FreeInUse = "free-in-use", "that pool memory in which a region lies is not freed", "orcheck-jobs session freed_only";
    Padding = "padding", "that what must be zero is looked at when a checkpoint is verified", "orcheck-engine reading padding";
    PieceSent = "piece-sent", "that an encoded extent is a piece which the rank sent", "orcheck-engine reading never_sent";
    // No length is trusted.
    CountBound = "count-bound", "that a count is no larger than what can follow", "orcheck-format format huge_count; orcheck-dst fuzz mutations";
    NothingFollows = "nothing-follows", "that nothing follows the end of metadata", "orcheck-format format flipped_manifest";
    EnvelopeLength = "envelope-length", "that a small file is as long as it says", "orcheck-format format behind_it";
    ManifestBounds = "manifest-bounds", "that what a manifest says is possible", "orcheck-format format validation";
    NameExact = "name-exact", "that a file name is exactly what would be written", "orcheck-format lib names; orcheck-dst fuzz corpus";
    ExtentInStream = "extent-in-stream", "that a rank's extents lie in its stream", "orcheck-engine reading outside_the_stream";
    TakenChunk = "taken-chunk", "that a chunk whose number comes from another process exists and is taken", "orcheck-pool pool numbers_that_cross";
    RingDistance = "ring-distance", "that the counters of a ring are not further apart than its length", "orcheck-pool pool nonsense";
    EncodedLength = "encoded-length", "that an encoded extent gives a bounded number of bytes", "orcheck-format format manifests";
    StoredLength = "stored-length", "that an encoded extent is not longer than what it stands for", "orcheck-format format manifests";
    CborDepth = "cbor-depth", "that metadata is nested only so deep", "orcheck-format lib loose_encodings";
    ItemsBound = "items-bound", "that a list has a bounded number of items", "orcheck-format format lists_and_texts";
    TextBound = "text-bound", "that a text has a bounded number of bytes", "orcheck-format format lists_and_texts";
    NotesBound = "notes-bound", "that a bounded number of damaged files of a place are reported one by one", "orcheck-engine reading thousands_of_damaged";
    UringDeadline = "uring-deadline", "that a wait for a write through io_uring ends", "orcheck-pool lib a_write_that_never_ends";
    RecordBound = "record-bound", "that a rank record has a bounded number of bytes", "orcheck-format format lists_and_texts";
    TrailerBounds = "trailer-bounds", "that the manifest lies inside its file", "orcheck-format format lists_and_texts";
    SmallBound = "small-bound", "that a small file has a bounded number of bytes", "orcheck-io disk small_files";
    RegionSum = "region-sum", "that the extents of a region are as long as the region", "orcheck-engine reading target_of_another_size";
    Announced = "announced", "that a rank sends no more than it announced", "orcheck-engine reading another_stream";
    ReferredBound = "referred-bound", "that a rank refers to a bounded number of older checkpoints", "orcheck-engine gone neighbour";
    PieceInSegment = "piece-in-segment", "that a piece which a rank announces lies in its segment", "orcheck-engine gone neighbour";
    AdoptionRanks = "adoption-ranks", "that every rank of a job that is handed over is in one place", "orcheck-format format rank_in_two_places";
    AdoptionVersion = "adoption-version", "that an agent and its ranks are of one version", "orcheck-format format handed_to_an_agent";
    PieceProgress = "piece-progress", "that bytes which arrive slowly are waited for", "orcheck-net net come_slowly";
    OutlastTurns = "outlast-turns", "that the kernel keeps a connection that waits for its turn at a server", "orcheck-staging lib outlasts";
    TurnTimeout = "turn-timeout", "that a turn at a server is waited for longer than an answer", "orcheck-staging lib turn_that_comes_late";
    EndAtOnce = "end-at-once", "that a server which ends does not wait for callers in the middle of a block", "orcheck-staging waits ends_in_the_middle";
    HungDisk = "hung-disk", "that a server whose disk hangs does not keep those who wait for their turn", "orcheck-staging waits disk_hangs";
    JobShare = "job-share", "that readers of one job which stop keep no other job from reading", "orcheck-staging waits stop_keep_no_other";
    ReadsWait = "reads-wait", "that many readers of a server wait for each other", "orcheck-staging waits readers_wait";
    SignsOfLife = "signs-of-life", "that a server which reads nothing for a while is waited for as long as it is alive", "orcheck-net net reads_nothing";
    HalfOpen = "half-open", "that a bounded number of strangers is kept waiting", "orcheck-net lib half_open";
    Descriptors = "descriptors", "that a peer can send a bounded number of descriptors", "orcheck-net lib unclaimed";
    PoolSeals = "pool-seals", "that the memory of a pool cannot shrink under its users", "orcheck-pool pool shapes_and";
    PinBudget = "pin-budget", "that the program keeps most of what may be locked", "orcheck-pool uring keeps_its_locked";
    PinThere = "pin-there", "that only memory which is there is pinned", "orcheck-pool uring memory_that_is_not_there";
    PoolSize = "pool-size", "that the memory of a pool is as long as its shape says", "orcheck-pool lib head::";
    PoolBudget = "pool-budget", "that a pool is no larger than what is free", "orcheck-engine lib cgroup_limit";
    GroupLimits = "group-limits", "that the limits of control groups count", "orcheck-io lib every_ancestor";
    LedgerForgets = "ledger-forgets", "that places which nothing can refer to are forgotten", "orcheck-engine lib what_nobody";
    // What was written is there.
    FsyncContainer = "fsync-container", "the fsync of containers and stripes", "orcheck-engine outage container_is_whole";
    FsyncContainerDirectory = "fsync-container-directory", "the fsync of the directory of a container", "orcheck-engine outage container_is_whole";
    FsyncSmall = "fsync-small", "the fsync of commit records and notes of resumption", "orcheck-io outage small_file";
    FsyncSmallDirectory = "fsync-small-directory", "the fsync of the directory of a commit record", "orcheck-io outage small_file";
    FsyncClaim = "fsync-claim", "the fsync of a claim", "orcheck-engine outage claim";
    FsyncClaimDirectory = "fsync-claim-directory", "the fsync of the directory of a claim", "orcheck-engine outage claim";
    FsyncPrune = "fsync-prune", "the fsync between records and containers that are deleted", "orcheck-engine outage no_record";
    FsyncMade = "fsync-made", "the fsync after making a directory", "orcheck-engine outage was_made";
    TemporaryName = "temporary-name", "that small files are written under a temporary name", "orcheck-io disk small_file; orcheck-io disk small_files";
    FailedSync = "failed-sync", "that a failed fsync is an error", "orcheck-io disk failed_sync";
    FailedSyncIsLoss = "failed-sync-is-loss", "that a file whose fsync failed is never used again", "orcheck-io disk failed_sync";
    FailedClose = "failed-close", "that a failed close is an error", "orcheck-io disk failed_close";
    ShortWrite = "short-write", "that a short write is continued", "orcheck-io disk short";
    EmptyWrite = "empty-write", "that a write of nothing is an error", "orcheck-io disk transfer_of_nothing";
    RingRefusal = "ring-refusal", "that what io_uring refuses is written plainly", "orcheck-pool uring calls_of_the_ring";
    ShortRead = "short-read", "that a file which ends early is an error", "orcheck-io disk file_lives; orcheck-engine reading torn";
    TruncateSurplus = "truncate-surplus", "that a container ends with its trailer", "orcheck-engine outage surplus";
    EveryDirectory = "every-directory", "that a commit record is written into every directory of its level", "orcheck-engine reading into_every_directory";
    PathIsHandle = "path-is-handle", "that nothing is committed where the configured path does not lead any more", "orcheck-io paths moved_away; orcheck-jobs session moved_away";
    RecordReadable = "record-readable", "that a commit record which readers would refuse is not written", "orcheck-engine reading readers_would_refuse";
    AllDirectories = "all-directories", "that a new job begins only when all its directories are there", "orcheck-jobs session while_a_directory_is_missing";
    // Order.
    AllVotes = "all-votes", "that every node has voted before a commit record is written", "orcheck-engine protocol any_order";
    AllWriters = "all-writers", "that every writer of a node is durable before it votes", "orcheck-engine protocol any_order";
    RelayWaits = "relay-waits", "that a relay passes on what all nodes below it say as one", "orcheck-engine tree one_message";
    LossIsFinal = "loss-is-final", "that a loss aborts the step", "orcheck-engine protocol any_order";
    DecidedOnce = "decided-once", "that a step is decided once", "orcheck-engine protocol any_order";
    LostServers = "lost-servers", "that nothing in a directory that failed is committed", "orcheck-engine protocol failed_directory";
    AllRecorded = "all-recorded", "that every node has written its record before the step is committed", "orcheck-engine protocol any_order";
    RecordsFirst = "records-first", "that records are deleted before their containers", "orcheck-engine outage no_record";
    KeepRule = "keep-rule", "that nothing is deleted before enough newer checkpoints are committed", "orcheck-engine lib prune";
    Kept = "kept", "that the kept checkpoints are not deleted", "orcheck-engine lib prune";
    RoomOfPrune = "room-of-prune", "that a checkpoint which finds no room waits for what the last commit has replaced to go", "orcheck-jobs session the_room_that_prune_makes";
    LostGoes = "lost-goes", "that what was written of a lost step goes before the next one is written", "orcheck-jobs session of_lost_steps";
    FullPruned = "full-pruned", "that older checkpoints go from a directory that became full", "orcheck-jobs session from_a_full";
    LeftoversFirst = "leftovers-first", "that what killed runs left goes before a run writes its first container", "orcheck-jobs session found_full";
    LeftoversOfDead = "leftovers-of-dead", "that nothing of a run which lives counts as left over", "orcheck-engine reading still_lives";
    FailedDirectory = "failed-directory", "that a directory that failed takes no more containers", "orcheck-engine protocol a_full_directory";
    NewerRun = "newer-run", "that prune leaves newer runs alone", "orcheck-engine lib newer_or_being_written";
    BeingWritten = "being-written", "that prune leaves alone what is being written", "orcheck-engine lib newer_or_being_written";
    LivingTemporary = "living-temporary", "that prune leaves the temporary files of living runs alone", "orcheck-engine lib temporary_files";
    // What is not stored again is there, and as it was.
    ReferredNamed = "referred-named", "that the commit record names the older checkpoints that a manifest refers to", "orcheck-engine reading named_by_no_record";
    OlderContainer = "older-container", "that a container which is referred to is of the job and step that was meant", "orcheck-jobs session wrong_with_a_referred";
    ReferencesNamed = "references-named", "that a rank which refers to older containers says to which", "orcheck-engine reading outside_the_stream";
    ReferenceStep = "reference-step", "that a rank refers only to the older checkpoints that it named", "orcheck-engine reading did_not_name";
    ReferencePlace = "reference-place", "that a rank refers only to bytes that it stored", "orcheck-engine lib a_reference_becomes";
    TrackedMemory = "tracked-memory", "that a region which has moved is tracked again", "orcheck-jobs session elsewhere_is_tracked";
    LateBaseline = "late-baseline", "that a snapshot which ends late does not become the baseline", "orcheck-engine baseline ends_late";
    FailedScan = "failed-scan", "that everything is stored when the kernel does not say what was written", "orcheck-jobs session without_tracking";
    PageEnds = "page-ends", "that the parts of pages at both ends of a tracked region are always read", "orcheck-jobs session parts_of_pages";
    PrivatePages = "private-pages", "that only memory which no other process can write is tracked", "orcheck-pool track only_private";
    OpenPages = "open-pages", "that pages which are not protected count as written", "orcheck-pool track left_open";
    ScanArmed = "scan-armed", "that memory which was mapped again is noticed", "orcheck-pool track mapped_anew";
    HomeAtLevel = "home-at-level", "that a checkpoint refers only to what went to all its levels", "orcheck-engine baseline went_to_a_weaker";
    HomeCommitted = "home-committed", "that only what is committed is referred to", "orcheck-jobs session what_a_lost_step";
    ReferredLost = "referred-lost", "that nothing is committed which refers to a directory that failed", "orcheck-engine protocol refers_to_a_failed";
    FullAfterLoss = "full-after-loss", "that everything is stored again after a loss", "orcheck-jobs session after_a_loss_everything";
    Pins = "pins", "that prune keeps what newer checkpoints refer to", "orcheck-jobs session what_a_pinned";
    PinsOfPinned = "pins-of-pinned", "that prune keeps what those refer to that are kept for others", "orcheck-jobs session what_a_pinned";
    PinsUnread = "pins-unread", "that a record which cannot be read keeps everything older", "orcheck-engine prune cannot_be_read";
    Chain = "chain", "that after a bounded number of checkpoints one refers to nothing", "orcheck-jobs session compared_regions";
    // One run writes.
    Exclusive = "exclusive", "that a file which exists is not created again", "orcheck-io disk file_lives";
    ClaimOnce = "claim-once", "that a claim never replaces another one", "orcheck-io disk never_over";
    ClaimLock = "claim-lock", "that a run whose claim is locked is not superseded by accident", "orcheck-jobs session second_run";
    LockExcludes = "lock-excludes", "that a lock has one holder", "orcheck-io disk a_lock; orcheck-pool pool gates";
    OneRunAClaim = "one-run-a-claim", "that two runs at one counter are refused", "orcheck-engine reading two_runs";
    EpochBefore = "epoch-before", "that a superseded run stops before it writes a commit record", "orcheck-engine reading superseded_run";
    EpochAfter = "epoch-after", "that the claims are read again after a commit record is visible", "orcheck-jobs faults zombie";
    Superseded = "superseded", "that steps beyond the resumed one are ignored", "orcheck-engine reading resume_rule";
    Resumed = "resumed", "that a run records what it resumed from", "orcheck-jobs faults zombie";
    AgentDrained = "agent-drained", "that a drained agent ends when nothing of its sessions is left", "orcheck-cli cli whose_ranks_live";
    HaltOfEpoch = "halt-of-epoch", "that a request to halt is for one run of the job", "orcheck-engine reading a_request_to_halt";
    HaltedStays = "halted-stays", "that a job which was asked to halt is not started again", "orcheck-cli cli halted_job";
    ToldToRun = "told-to-run", "that `orcheck run` learns from a program which jobs it opens, and why it cannot", "orcheck-cli cli learns_the_job";
    NoProgress = "no-progress", "that restarts end when runs commit no newer step", "orcheck-cli cli no_newer_step";
    CounterFirst = "counter-first", "that a run which claims while another one looks is seen", "orcheck-jobs session claims_while";
    CounterOfNames = "counter-of-names", "that no epoch is given again although its claim was lost", "orcheck-jobs session claim_was_lost";
    LeadFirst = "lead-first", "that of all nodes the lead claims first", "orcheck-jobs session lead_claims";
    SupersededByLater = "superseded-by-later", "that a later run's steps supersede older ones without its note of resumption", "orcheck-engine reading resume_rule";
    FencesMore = "fences-more", "that of two notes of resumption the one with the older step counts", "orcheck-engine reading a_resumed_record";
    Rejected = "rejected", "that a checkpoint which the program rejected is not offered again", "orcheck-engine reading a_rejected_checkpoint";
    RejectedCounts = "rejected-counts", "that a rejected checkpoint does not count for the keep rule", "orcheck-engine reading rejected_checkpoints_do_not_count";
    KeptByHand = "kept-by-hand", "that prune leaves what somebody marked to be kept", "orcheck-engine reading marked_to_be_kept";
    CopySuperseded = "copy-superseded", "that what a newer run superseded is not copied to another level", "orcheck-engine copying superseded";
    CopySupersedes = "copy-supersedes", "that a copy takes nothing out of the count where it goes", "orcheck-engine copying would_supersede";
    UnfinishedClaim = "unfinished-claim", "that a claim which is being made is not removed by a copy", "orcheck-cli cli killed_copy_left";
    CopyUnreferred = "copy-unreferred", "that a copy replaces no files to which a newer checkpoint refers", "orcheck-engine copying refers_to";
    CopyTemporary = "copy-temporary", "that containers of a copy appear under their names only when they are whole", "orcheck-engine copying killed";
    CopyCountsFirst = "copy-counts-first", "that of two copies that begin at once only one writes", "orcheck-engine copying that_begin_at_once";
    ScavengeWaits = "scavenge-waits", "that nothing is scavenged while a run holds the job", "orcheck-cli cli scavenge_waits_for_a_run";
    ScavengeAsks = "scavenge-asks", "that nodes whose directories are elsewhere are asked what they hold", "orcheck-cli cli replicas_in_memory_are_scavenged";
    ScavengeUnseen = "scavenge-unseen", "that nodes which nobody looked at are not taken for empty", "orcheck-cli cli nobody_looked_at";
    ScavengePatience = "scavenge-patience", "that no older step is scavenged while a node may still come", "orcheck-cli cli nodes_without_agents_are_served";
    ScavengeRecorded = "scavenge-recorded", "that a step counts at level global only if its record is in all directories", "orcheck-cli cli half_recorded";
    ScavengeDamaged = "scavenge-damaged", "that no older step is scavenged while a node that was not read may replace damage", "orcheck-cli cli damaged_step_waits";
    UnreadNewer = "unread-newer", "that a newer step whose commit record cannot be used is not passed over in silence", "orcheck-cli cli whose_record_is_damaged";
    AgentsAsked = "agents-asked", "that what is in the memory of agents is not called lost", "orcheck-cli cli in_the_memory_of_agents";
    CopyLastLook = "copy-last-look", "that a step which a newer run supersedes while it is copied is not committed", "orcheck-engine copying superseded_meanwhile";
    NodeRecognised = "node-recognised", "that the renamed directory of a node is recognised by what it holds", "orcheck-cli cli recognised_by_what_it_holds";
    ScavengeMore = "scavenge-more", "that a scavenge is no full success while too many nodes were not read", "orcheck-cli cli more_nodes_unread";
    CopyRefers = "copy-refers", "that a copy counts as whole only with what it refers to", "orcheck-cli cli whose_older_data_is_gone";
    CopyErrors = "copy-errors", "that errors of where a copy goes are not taken for damage of its source", "orcheck-engine copying errors_of_the_destination";
    CopyRoom = "copy-room", "that room for a copy is looked for before anything is written", "orcheck-engine copying room";
    NeededOrphans = "needed-orphans", "that no container is called left over that others need", "orcheck-cli cli a_mark_needs";
    PruneProven = "prune-proven", "that without the key nothing of an encrypted job is pruned by hand", "orcheck-cli cli forged_newer";
    PruneLeavesRecord = "prune-leaves-record", "that `orcheck prune` leaves no directory without a commit record", "orcheck-cli cli that_missed_the_newest";
    RemovedUnreferred = "removed-unreferred", "that a checkpoint which others need is not removed by hand", "orcheck-engine reading others_refer_to";
    ClaimsStay = "claims-stay", "that prune leaves the claims of runs whose checkpoints stay", "orcheck-engine prune claims_stay";
    // Strangers.
    PlainName = "plain-name", "that a file name is one component", "orcheck-io disk names_are";
    NoLink = "no-link", "that no symbolic link is followed", "orcheck-io disk only_regular";
    RegularFile = "regular-file", "that only regular files are opened", "orcheck-io disk only_regular";
    AgentDrains = "agent-drains", "that an agent finishes what its ranks had sealed", "orcheck-jobs agent sealed_survives";
    KeptAscends = "kept-ascends", "that pieces of kept memory can be looked up", "orcheck-format format kept_memory";
    KeptAlone = "kept-alone", "that memory is taken from no rank that lives on", "orcheck-jobs agent kept::";
    KeptVerified = "kept-verified", "that what is taken from the memory of an agent is what was stored", "orcheck-jobs agent kept::";
    KeptOfCommit = "kept-of-commit", "that memory of another checkpoint than the one that is read is left alone", "orcheck-jobs agent kept::";
    KeptForgotten = "kept-forgotten", "that an agent gives memory back when the next run has restarted", "orcheck-jobs agent kept::";
    KeptWiped = "kept-wiped", "that memory of an encrypted job is overwritten before it is given back", "orcheck-pool kept given_back";
    AgentShelf = "agent-shelf", "that an agent gives out what its node holds after its ranks are gone", "orcheck-jobs agent run_no_rank_any";
    MendFetch = "mend-fetch", "that what only nodes without ranks hold is copied to nodes that have some", "orcheck-jobs agent run_no_rank_any";
    AgentYields = "agent-yields", "that a new run waits for the agents of the one before", "orcheck-jobs agent sealed_survives";
    HolderGone = "holder-gone", "that a holder that is gone loses the replica", "orcheck-engine protect lost_connection";
    AllHeld = "all-held", "that every holder says that it has the replica", "orcheck-engine protect any_order";
    ReplicaEpoch = "replica-epoch", "that replicas of another run are refused", "orcheck-engine protect not_its_business";
    ReplicaOwner = "replica-owner", "that nodes bring their own containers only", "orcheck-engine protect not_its_business";
    ReplicaMemory = "replica-memory", "that replicas in memory stay within the room that is given for them", "orcheck-engine keeper in_memory";
    ReplicaBudget = "replica-budget", "that replicas stay within the room that is given for them", "orcheck-engine protect not_its_business";
    ReplicaRoom = "replica-room", "that a replica stays within the room that it asked for", "orcheck-engine protect order_within";
    ReplicaWhole = "replica-whole", "that a replica has its name only when it is whole", "orcheck-engine keeper half_of_a";
    SlotAgain = "slot-again", "that what was written of a replica that was given up is told from the next one in its place", "orcheck-engine keeper used_again";
    ReplicaCrc = "replica-crc", "the CRC of a replica as a whole", "orcheck-engine protect order_within";
    ReplicaCount = "replica-count", "that a commit record has the replicas that its level promises", "orcheck-format format commit_records";
    ParityCount = "parity-count", "that a commit record has the parity that its level promises", "orcheck-format format commit_records";
    ParityDomain = "parity-domain", "that nodes of a group with parity do not fail together", "orcheck-placement parity fail_together";
    ParityReceived = "parity-received", "the CRC of what a member sent to a parity file", "orcheck-engine parity gathering";
    ParityBudget = "parity-budget", "the space set aside for parity", "orcheck-engine parity gathering";
    ParityRoom = "parity-room", "that a member sends no more to a parity file than space was granted for", "orcheck-engine parity gathering";
    ParityEpoch = "parity-epoch", "that parity is taken from this run only", "orcheck-engine parity gathering";
    ParityWhole = "parity-whole", "that a parity file is lost with one of its containers", "orcheck-engine parity gathering";
    ParityName = "parity-name", "that a parity file is the one that its name says", "orcheck-engine parity rebuilt";
    ParityData = "parity-data", "the CRC of data from which lost blocks are computed", "orcheck-engine parity rebuilt";
    ParityBlock = "parity-block", "the CRC of parity blocks", "orcheck-engine parity rebuilt";
    ParityCrcs = "parity-crcs", "that a parity file can describe all its blocks", "orcheck-engine parity gathering";
    ParityComputed = "parity-computed", "the CRC of data that was computed from parity", "orcheck-engine parity rebuilt";
    ParityWriters = "parity-writers", "that with parity each node has one writer", "orcheck-jobs session one_writer";
    ParityRecord = "parity-record", "that a parity file protects what the commit record names", "orcheck-jobs session damaged_and_missing";
    RepairVerified = "repair-verified", "that a repair is verified before it takes the place of the damaged file", "orcheck-engine reading repair";
    RepairInPlace = "repair-in-place", "that a damaged file has its name until the good one takes it", "orcheck-engine reading repair";
    RepairApart = "repair-apart", "that two repairs at the same time do not write the same file", "orcheck-engine reading repair";
    RecordCopied = "record-copied", "that a node which missed a commit learns of it at the restart", "orcheck-jobs session missed_the_commit";
    FetchedName = "fetched-name", "that only files of the job are read to other nodes", "orcheck-engine keeper only_files_of_the_job";
    ReplicaDomain = "replica-domain", "that replicas lie where they do not fail together", "orcheck-placement holders do_not_fail_together";
    GroupShared = "group-shared", "that directories which a group may write to are refused unless that group was named", "orcheck-io owners group";
    Owner = "owner", "that directories of another user are refused", "orcheck-io owners everybody_may_write";
    Mac = "mac", "the authentication of frames", "orcheck-net net flipped_bit";
    MacHead = "mac-head", "that the proof of a frame covers its header and place", "orcheck-net net flipped_bit";
    BulkKind = "bulk-kind", "that bytes of a replica are not taken for those of a server's file", "orcheck-net net one_kind_of_bytes";
    NetCipher = "net-cipher", "the authentication of encrypted frames", "orcheck-net lib equal_texts; orcheck-net net flipped_bit";
    NetHeader = "net-header", "that an encrypted frame belongs to its header", "orcheck-net lib equal_texts; orcheck-net net flipped_bit";
    NetNonce = "net-nonce", "that no two frames are encrypted with one nonce", "orcheck-net lib equal_texts";
    NetDowngrade = "net-downgrade", "that both sides of a connection encrypt, or none", "orcheck-net net both_sides_encrypt";
    FrameOrder = "frame-order", "that a frame is neither repeated, lost nor moved", "orcheck-net net repeated";
    CallerProof = "caller-proof", "that a caller proves that it knows the key", "orcheck-net net a_recorded";
    ListenerProof = "listener-proof", "that a listener proves that it knows the key", "orcheck-net net only_holders";
    SpokenFor = "spoken-for", "that a node speaks only for the nodes below it", "orcheck-engine tree speaks_only";
    FrameLength = "frame-length", "that a frame has a bounded number of bytes", "orcheck-format format longer_than_allowed";
    ForeignFiles = "foreign-files", "that files of others are left alone", "orcheck-jobs session foreign_files";
    SilentFirst = "silent-first", "that of half-open connections the silent ones go first", "orcheck-net net pushed_out";
    PeerUser = "peer-user", "that a peer on the same machine runs under the same user", "orcheck-net net another_user";
    NoFork = "no-fork", "that a forked child has no part of the pool", "orcheck-pool pool forked_child";
    FileLimit = "file-limit", "that a limit on the length of files does not end the program", "orcheck-jobs faults limits_of_the_process";
    // What is encrypted.
    Tag = "tag", "the authentication of encrypted bytes", "orcheck-engine lib every_bit_of_an_encrypted";
    BoundExtent = "bound-extent", "that encrypted bytes belong to one place of one region of one rank", "orcheck-engine lib belongs_to_one_place";
    BoundContainer = "bound-container", "that encrypted bytes belong to one container", "orcheck-engine lib belongs_to_one_place";
    Nonce = "nonce", "that no two extents are encrypted with one nonce", "orcheck-engine lib belongs_to_one_place";
    Salt = "salt", "that no two containers have one key", "orcheck-engine lib key_of_its_own";
    KeyCheck = "key-check", "that a wrong key is told from damage", "orcheck-engine lib belongs_to_one_place; orcheck-jobs session without_the_right_key";
    ClaimSeal = "claim-seal", "that a claim which is not believed ends no run and names nobody", "orcheck-engine forgery invented_claim";
    LinkedJob = "linked-job", "that no link is followed to the directory of a job or node", "orcheck-cli cli told_of_and_not_followed";
    JobProven = "job-proven", "that no record which is not believed says whose job a directory is", "orcheck-cli cli names_no_job";
    RecordMac = "record-mac", "the MAC over records", "orcheck-engine forgery every_forgery";
    RecordOfJob = "record-of-job", "that a rank reads a commit record of its own job", "orcheck-engine forgery every_forgery";
    MembersOwn = "members-own", "that a list of members is of this job and epoch", "orcheck-engine forgery every_forgery";
    HeaderMac = "header-mac", "the MAC over the header of an encrypted container", "orcheck-engine lib header_that_was_changed";
    UnsealedRefused = "unsealed-refused", "that a record without a seal is refused where encryption is configured", "orcheck-engine forgery every_forgery";
    PlainRefused = "plain-refused", "that a container that is not encrypted is refused where encryption is configured", "orcheck-engine forgery accepting_one_form";
    V1Refused = "v1-refused", "that encryption in the form of 0.1.0 is refused where encryption is configured", "orcheck-engine forgery accepting_one_form";
    PlainExtent = "plain-extent", "that an encrypted container holds encrypted extents only", "orcheck-engine forgery accepting_one_form";
    SealedTogether = "sealed-together", "that sealed containers belong to sealed records, and no others", "orcheck-engine forgery accepting_one_form";
    OtherKeyNewer = "other-key-newer", "that a newer checkpoint under another key is not passed over", "orcheck-jobs session a_key_is_changed";
    SameEnabled = "same-enabled", "that all ranks or none have checkpoints", "orcheck-jobs session disabled_on_some";
    SameKey = "same-key", "that all ranks were given the same key", "orcheck-jobs session different_keys";
    KeyOwner = "key-owner", "that a key which others can read is refused", "orcheck-cli cli the_key_opens";
    KeyHidden = "key-hidden", "that a key is not printed", "orcheck-io lib nothing_shows";
    KeyUnsaid = "key-unsaid", "that what may be a key is not repeated in a message", "orcheck-io lib nothing_shows";
    KeyWiped = "key-wiped", "that a key is overwritten when it is not needed any more", "orcheck-io lib overwritten";
    HiddenCrc = "hidden-crc", "that no checksum of what is encrypted is readable", "orcheck-jobs session every_encoding";
    // Every wait ends.
    ChunkDeadline = "chunk-deadline", "that a wait for a chunk ends", "orcheck-pool pool who_waits_for_no_chunk";
    GateDeadline = "gate-deadline", "that a wait for a gate ends", "orcheck-pool pool a_gate_waits";
    PartsOfLast = "parts-of-last", "that a region declared again is read where it is now", "orcheck-jobs session declared_again_between";
    EngineAlive = "engine-alive", "that nobody waits for an engine that died", "orcheck-engine gone an_engine";
    RankGone = "rank-gone", "that the flush does not wait for a rank that died", "orcheck-engine gone a_rank";
    Succession = "succession", "that a run continues when one of its agents ended", "orcheck-jobs agent goes_on";
    NobodyBetween = "nobody-between", "that a run which was without an agent does not supersede another run", "orcheck-jobs agent began_meanwhile";
    UndecidedSaid = "undecided-said", "that a loss is not called final while a commit record may be there", "orcheck-engine protocol may_be_there; orcheck-jobs faults every_loss_is_told";
    UncommittedBound = "uncommitted-bound", "that no more checkpoints are staged than may be uncommitted", "orcheck-jobs session one_checkpoint_at_most";
    ToldAgain = "told-again", "that what was whole in memory when an agent ended is flushed again", "orcheck-jobs agent flushed_again";
    UnfinishedDropped = "unfinished-dropped", "that what a dead rank left unfinished gives its chunks back", "orcheck-engine gone left_unfinished";
    BeginThenFail = "begin-then-fail", "that a snapshot which is given up is told to the flush", "orcheck-jobs session a_codec; orcheck-jobs faults alone";
    ToldWhole = "told-whole", "that a snapshot which is given up is told whole before the next one begins", "orcheck-jobs session snapshots_of_one_rank";
    LentBytes = "lent-bytes", "that memory from which a replica is being sent is not given back before it is sent", "orcheck-engine keeper bytes_of_a_write";
    QueueFirst = "queue-first", "that no message overtakes a queued one", "orcheck-net net a_peer_that_takes_nothing";
    SendDeadline = "send-deadline", "that a wait for room to send ends", "orcheck-net net every_wait";
    ReceiveDeadline = "receive-deadline", "that a wait for a message ends", "orcheck-net net every_wait";
    AcceptDeadline = "accept-deadline", "that strangers who keep coming do not keep a listener", "orcheck-net lib a_crowd";
    NameHeld = "name-held", "that another user who holds the name of an agent does not keep the job from running", "orcheck-jobs faults names_of_agents; orcheck-cli cli another_user_who_holds";
    AgentLimits = "agent-limits", "that an agent with lower limits than a new run's is replaced", "orcheck-cli cli lower_limits";
    AgentHears = "agent-hears", "that a caller who says a half keeps no other from an agent", "orcheck-jobs agent say_a_half";
    ConnectDeadline = "connect-deadline", "that a wait for a listener ends", "orcheck-net net every_wait";
    DeadHolder = "dead-holder", "that a waiter looks by itself whether a gate's holder died", "orcheck-pool pool a_dead_holder";
    WriterGone = "writer-gone", "that a step is given up when one of its writers is gone", "orcheck-engine protocol a_writer_gone";
    LeadGone = "lead-gone", "that nobody waits for a lead that is gone", "orcheck-engine protocol the_lead_gone";
    NodeGone = "node-gone", "that a step is given up when one of its nodes is gone", "orcheck-engine protocol a_node_gone";
    RelayTells = "relay-tells", "that the lead hears of a node that is gone below a relay", "orcheck-engine tree a_lost_relay; orcheck-dst jobs jobs_with_faults";
    RelayHangsUp = "relay-hangs-up", "that a relay which lost the lead lets go of the nodes below it", "orcheck-engine tree a_lost_relay; orcheck-dst jobs jobs_with_faults";
    RoomForSnapshots = "room-for-snapshots", "that the program's own memory leaves the pool room for snapshots", "orcheck-jobs session alloc_leaves_room";
    PatienceEnds = "patience-ends", "that a wait for the engine ends", "orcheck-engine gone its_time_is_over";
    UnreadKept = "unread-kept", "that a warning which the program has not read comes with its next call too", "orcheck-capi lib until_it_is_read";
    LossTold = "loss-told", "that the next call tells of a lost checkpoint", "orcheck-jobs session every_loss_on_a_full; orcheck-jobs faults every_loss_is_told";
    FencedTold = "fenced-told", "that a superseded run gets an error from its next checkpoint", "orcheck-jobs session superseded_run_gets";
    NeverComes = "never-comes", "that nobody waits for a checkpoint that was never taken", "orcheck-jobs session what_never_comes";
    // Staging servers.
    StoreSettled = "store-settled", "that what a server has in memory is written before it is told to be durable", "orcheck-staging served before_it_is_written";
    ServerIdentity = "server-identity", "that a server with another disk is noticed", "orcheck-staging identity another_disk";
    StoreRest = "store-rest", "that what waits for the next write to a server is sent before a sync", "orcheck-staging served small_writes";
    StoreCredit = "store-credit", "that only what a server wants is sent to it", "orcheck-staging served not_wanted";
    NamesCounted = "names-counted", "that a directory is synced after a name in it changed", "orcheck-staging lib something_changed";
    StoreAnew = "store-anew", "that names which an earlier start of a server changed do not count as durable", "orcheck-staging served started_anew";
    StoreTenant = "store-tenant", "that a key opens its own directory and no other", "orcheck-staging served own_directory";
    Revoked = "revoked", "that a key which was replaced or removed at SIGHUP admits nobody", "orcheck-cli cli at_sighup";
    StoreVersion = "store-version", "that a server and a caller without a version in common refuse each other", "orcheck-staging versions too_new";
    MungeFresh = "munge-fresh", "that a MUNGE credential which is too old or was used before is refused", "orcheck-net munge used_before";
    MungeSealed = "munge-sealed", "that a MUNGE credential which others could open is refused", "orcheck-net munge for_the_listener_alone";
    MungeUser = "munge-user", "that a MUNGE credential opens the directory of its user", "orcheck-net munge who_is_known";
    Quota = "quota", "that a tenant takes no more of a disk than it may", "orcheck-staging quota truncated_to_a_larger";
    QuotaLook = "quota-look", "that what a change of names left is looked at before anything is given back", "orcheck-staging quota onto_itself";
    QuotaTurn = "quota-turn", "that names which are counted are changed one at a time", "orcheck-staging quota while_another_one_replaces";
    QuotaOrder = "quota-order", "that an older look at the disk does not replace a newer one", "orcheck-staging lib two_looks";
    QuotaLength = "quota-length", "that a length which is only set is charged", "orcheck-staging quota truncated_to_a_larger";
    QuotaOpen = "quota-open", "that a removed file is charged until it is closed", "orcheck-staging quota another_connection";
    QuotaEntries = "quota-entries", "that names are charged", "orcheck-staging quota empty_files";
    QuotaDeep = "quota-deep", "that what lies deep below is charged", "orcheck-staging quota deep_below";
    QuotaRecount = "quota-recount", "that what is charged is compared with the disk", "orcheck-staging quota counted_again";
    PullStalled = "pull-stalled", "that a node which stops loses its turn", "orcheck-staging pull delays_nobody";
    PullBound = "pull-bound", "that a server wants no more than it has memory for", "orcheck-staging pull half_of_the_memory";
    OrdinaryShare = "ordinary-share", "that ordinary traffic keeps its share of a server's disk", "orcheck-staging room keep_their_share";
    ScrubRate = "scrub-rate", "that scrubbing reads no faster than it was told", "orcheck-io paced no_faster";
    ScrubPruned = "scrub-pruned", "that what was pruned while it was scrubbed is not called damaged", "orcheck-engine reading removed_while";
    ScrubDue = "scrub-due", "that scrubbing reads what lies there again when it is due", "orcheck-engine reading due_again";
    // Nothing is left behind.
    Withdrawn = "withdrawn", "that a run which could not begin takes its claims back", "orcheck-jobs faults a_failed_start";
    GivenUpGoes = "given-up-goes", "that a container which is given up is removed", "orcheck-engine reading given_up";
    SmallStack = "small-stack", "that a call which does not fit on the stack of its thread is refused", "orcheck-capi stack too_small";
    OwnRoute = "own-route", "that only the routed files of older runs are collected", "orcheck-engine lib a_living_process";
    RouteBudget = "route-budget", "that files of the program take no more memory than their budget", "orcheck-jobs session routed_files_have_a_budget";
    MemoryFileClosed = "memory-file-closed", "that a memory file is not stored while it is open", "orcheck-jobs session an_open_memory_file";
    MemoryFileComplete = "memory-file-complete", "that a memory file which could not be written completely is not stored", "orcheck-jobs session a_memory_file_that_could_not";
    MemoryFileBorrowed = "memory-file-borrowed", "that a memory file is not written over while a checkpoint reads it", "orcheck-jobs session written_again_while";
    MemoryFilesOfStep = "memory-files-of-step", "that a restart leaves no memory file of another step", "orcheck-jobs session memory_files_come_back";
    StagedComplete = "staged-complete", "that a file is unstaged only when the backing file has all that was written", "orcheck-mount mount flushed_counts";
    StagedSynced = "staged-synced", "that a file is unstaged only when it is durable", "orcheck-mount mount a_failed_sync";
    StagedAgain = "staged-again", "that all of a file is written again after a failed sync", "orcheck-mount lib written_again";
    StagedFile = "staged-file", "that staged bytes get into no file that was made later", "orcheck-mount mount into_no_other_file";
    StagedThisStart = "staged-this-start", "that what was staged before the machine was started again is not flushed", "orcheck-mount mount into_no_other_file";
    StagedNew = "staged-new", "that only files whose content is new are staged", "orcheck-mount mount shared_between_nodes";
    StageOnce = "stage-once", "that two mounts do not use one stage", "orcheck-mount mount by_one_mount";
    ReplaceDurable = "replace-durable", "that a file is replaced only by bytes that are durable", "orcheck-mount mount killed_at_any_step";
    MountFailureTold = "mount-failure-told", "that a program learns that its file did not become durable", "orcheck-mount mount a_loss_in_the_background";
    SetComplete = "set-complete", "that a set of files is taken only when none of them is missing or being written", "orcheck-mount lib keeps_its_set";
    SetBrokenOff = "set-broken-off", "that half of a file, which a killed program wrote, completes no set", "orcheck-mount mount a_killed_program";
    SetSpoiled = "set-spoiled", "that a set which changes while it is taken is lost", "orcheck-mount lib changes_while_it_is_taken";
    SetAside = "set-aside", "that files of a set which never became complete are moved aside", "orcheck-mount mount not_offered";
    SetBeside = "set-beside", "that what a power cut leaves of the marks of a step is enough to find its files", "orcheck-mount mount power_cut";
    SetDurable = "set-durable", "that a step is marked until its files are durable", "orcheck-mount mount power_cut_tears";
    SetPath = "set-path", "that the files of a set are restored only below the backing directory", "orcheck-mount lib outside";
    MeetingOwner = "meeting-owner", "that mounts meet only by a file of their user", "orcheck-client lib not_a_meeting";
    LivingRoute = "living-route", "that routed files of a process that lives are not collected", "orcheck-engine lib a_living_process";
    StandardStreams = "standard-streams", "that no descriptor takes the number of a closed standard stream", "orcheck-net descriptors standard_stream";
    Printable = "printable", "that names of files act on no terminal", "orcheck-cli cli names_that_would_act";
    ForkedLocks = "forked-locks", "that a forked child does not keep its parent's locks, names and connections", "orcheck-net descriptors sign_of_life; orcheck-capi callers outlive";
    OwnCall = "own-call", "that a call from a signal handler does not wait for the call which it interrupted", "orcheck-capi lib waits_for_itself";
    EndBound = "end-bound", "that a close whose time is over leaves hanging threads behind", "orcheck-jobs session hangs_in_a_directory";
    ForkedChild = "forked-child", "that a forked child does not use the sessions of its parent", "orcheck-io lib a_child_is_not_the_owner";
    Uncancelled = "uncancelled", "that a thread is not cancelled inside a call", "orcheck-capi callers cancelled";
    // All ranks alike.
    Agreement = "agreement", "that all ranks restore the same step", "orcheck-jobs session after_damage; orcheck-jobs faults damaged_structures";
    AskAgain = "ask-again", "that a program whose size changed is asked again when an older checkpoint is used", "orcheck-jobs session of_another_size";
    RejectedStands = "rejected-stands", "that a job whose checkpoints were all rejected does not begin from nothing", "orcheck-jobs session rejected";
    OptionalProven = "optional-proven", "that no optional region is filled before every rank has verified all that it reads", "orcheck-jobs session a_fallback_leaves_optional";
    OptionalUnmixed = "optional-unmixed", "that an optional region which was filled from another step does not count as unchanged", "orcheck-jobs session filled_from_a_damaged_step";
    FallBack = "fall-back", "that an older checkpoint is used when the newest is damaged", "orcheck-jobs session after_damage";
    SameRegions = "same-regions", "that what is stored once for all ranks is the same on all", "orcheck-jobs session not_the_same_everywhere";
    SlowHeld = "slow-held", "that a snapshot on its way to a slow level is not given back with a later one", "orcheck-jobs session a_cheap_checkpoint_passes";
    LastToStrongest = "last-to-strongest", "that the last checkpoint goes to the strongest level", "orcheck-jobs session last_checkpoint_goes";
    WaitedWhereItGoes = "waited-where-it-goes", "that a step is not waited for at a level that it does not go to", "orcheck-jobs session a_step_is_waited_for";
    NewestOfEach = "newest-of-each", "that a close waits for the newest step of each level", "orcheck-jobs session newest_step_of_each";
    OutcomeKept = "outcome-kept", "that no step is forgotten before it is decided", "orcheck-jobs session no_more_checkpoints_pass";
    LevelOwed = "level-owed", "that a level whose checkpoint was left out, lost or cut off gets the next one", "orcheck-client lib left_out; orcheck-jobs session lost_its_checkpoint; orcheck-jobs session was_cut_off";
    DueToAll = "due-to-all", "that a checkpoint of a weaker level does not put off one to all levels", "orcheck-jobs session puts_off_nothing";
    FutureIsDue = "future-is-due", "that a level whose newest checkpoint is from the future is due", "orcheck-jobs session from_the_future";
    PaceAlone = "pace-alone", "that options for all levels and paces of levels contradict each other", "orcheck-client lib what_does_not_fit_together";
    UnknownVariable = "unknown-variable", "that a mistyped variable of the environment is not ignored", "orcheck-client lib no_option_names";
    UntriggeredSaid = "untriggered-said", "that a program which asks for due checkpoints hears that no trigger is configured", "orcheck-jobs session without_a_trigger";
    PassedMultiple = "passed-multiple", "that a step trigger sees a multiple which the program stepped over", "orcheck-jobs session stepped_over";
    OtherNames = "other-names", "that a job does not begin from nothing beside checkpoints that nodes of other names took", "orcheck-jobs session beside_nodes";
    StartResumes = "start-resumes", "that a job which must resume does not begin from nothing", "orcheck-jobs session must_resume";
    BesideSaid = "beside-said", "that a start from nothing beside the user's data is reported", "orcheck-jobs session beside";
    NewDisk = "new-disk", "that a start from nothing on a server with a new disk is told", "orcheck-jobs served an_empty_disk";
    UncommittedSaid = "uncommitted-said", "that containers without a commit record are reported", "orcheck-jobs session record_was_removed";
    AwayUnread = "away-unread", "that nothing begins from nothing while a directory that was given cannot be read", "orcheck-jobs session nothing_begins_beside_a_directory";
    TriedAgain = "tried-again", "that a step which could not be read for a moment is tried again", "orcheck-jobs served that_was_started_again";
    AwayNamed = "away-named", "that a restart without a directory that cannot be read names it and offers no start from nothing", "orcheck-jobs session without_a_missing_directory";
    NodeRemembers = "node-remembers", "that a job whose node level is whole does not count as new", "orcheck-jobs session only_global_is_missing";
    PastKnown = "past-known", "that a job which has checkpoints does not begin from nothing by accident", "orcheck-jobs session afresh_by_accident";
    NeverAfresh = "never-afresh", "that records which cannot be read are not taken for none", "orcheck-jobs session never_taken_for";
    KnownElsewhere = "known-elsewhere", "that a node which lost its directory does not hide what others have", "orcheck-jobs session a_new_first_node";
    SameStep = "same-step", "that all ranks checkpoint the same step", "orcheck-jobs session steps_grow";
    StepGrows = "step-grows", "that steps grow", "orcheck-jobs session steps_grow";
    OtherCopy = "other-copy", "that another level's copy is read when one is damaged", "orcheck-jobs session another_level";
    OtherPlace = "other-place", "that another place's copy of a container is read when one is damaged", "orcheck-engine reading a_good_copy";
    Rebuild = "rebuild", "that a damaged manifest is rebuilt", "orcheck-engine reading are_rebuilt";
}

/// Which promise of `docs/semantics.md` each switch serves. One that is missing does not compile.
macro_rules! promises {
    ($($promise:literal: $($switch:ident)+;)*) => {
        impl Switch {
            /// The promise that the protection serves: its name in `docs/semantics.md`, or
            /// `Epochs`.
            #[must_use]
            pub const fn promise(self) -> &'static str {
                match self {
                    $($(Self::$switch)|+ => $promise,)*
                }
            }
        }
    };
}

promises! {
    "R1":
        CrcBlock CrcRankRecord CrcEnvelope CrcExtent Digest DigestRebuilt HeaderFields
        HeaderInTrailer NameInRecord RunOfRecord CrcStored CrcDecoded Mark RecordKind RecordVersion
        FrameVersion PoolVersion UnknownFeature FieldOnce OneSpelling EveryRankOnce LevelInHeader
        JobInRecord TargetLength ProvenTwice RegionFits RecordOfStream DescriptorCrc PoolChecked
        RingFull FreeInUse Padding PieceSent ExtentInStream TakenChunk RingDistance ShortRead
        ReferredNamed OlderContainer ReferencesNamed ReferenceStep ReferencePlace
        TrackedMemory LateBaseline FailedScan PageEnds PrivatePages OpenPages ScanArmed Agreement
        SameRegions OptionalProven OptionalUnmixed PartsOfLast MemoryFileClosed MemoryFileComplete
        MemoryFileBorrowed MemoryFilesOfStep;
    "R2":
        FsyncContainer FsyncContainerDirectory FsyncSmall FsyncSmallDirectory FsyncClaim
        FsyncClaimDirectory FsyncPrune FsyncMade FailedSync FailedSyncIsLoss FailedClose
        EveryDirectory PathIsHandle RecordReadable AllDirectories LostServers AllRecorded
        RecordsFirst KeepRule Kept LeftoversOfDead FailedDirectory NewerRun BeingWritten
        LivingTemporary HomeCommitted ReferredLost FullAfterLoss Pins PinsOfPinned PinsUnread Chain
        PieceProgress SignsOfLife OutlastTurns TurnTimeout ReadsWait AgentDrained RejectedCounts KeptByHand UnfinishedClaim CopyUnreferred CopyRoom NeededOrphans
        PruneProven PruneLeavesRecord RemovedUnreferred AgentDrains AgentShelf MendFetch AgentYields HolderGone
        AllHeld ReplicaEpoch ReplicaWhole SlotAgain ReplicaCrc ReplicaCount ParityCount ParityDomain ParityReceived ParityBudget ParityEpoch ParityWhole ParityName ParityData
        ParityBlock ParityCrcs ParityRecord ParityComputed
        ParityWriters RepairVerified RepairInPlace RepairApart ReplicaDomain SameEnabled
        UncommittedBound StoreSettled ServerIdentity StoreRest NamesCounted StoreAnew ScrubPruned
        ScrubDue UnknownVariable UntriggeredSaid PassedMultiple StartResumes BesideSaid
        UncommittedSaid AwayUnread TriedAgain AwayNamed NodeRemembers PastKnown NeverAfresh KnownElsewhere;
    "R3":
        TemporaryName ShortWrite EmptyWrite RingRefusal TruncateSurplus AllVotes AllWriters
        RelayWaits LossIsFinal DecidedOnce CopyTemporary NobodyBetween BeginThenFail ToldWhole
        SameStep StepGrows;
    "Epochs":
        Exclusive ClaimOnce ClaimLock LockExcludes OneRunAClaim EpochBefore EpochAfter Superseded
        Resumed HaltOfEpoch HaltedStays ToldToRun NoProgress CounterFirst CounterOfNames LeadFirst
        SupersededByLater FencesMore CopySuperseded CopySupersedes ClaimsStay;
    "R4":
        Rejected AskAgain RejectedStands FallBack OtherCopy OtherPlace Rebuild;
    "R5":
        NewDisk;
    "R6":
        UringDeadline ChunkDeadline GateDeadline EngineAlive RankGone Succession UndecidedSaid
        ToldAgain UnfinishedDropped LentBytes QueueFirst SendDeadline ReceiveDeadline AcceptDeadline NameHeld AgentHears AgentLimits
        ConnectDeadline DeadHolder WriterGone LeadGone NodeGone RelayTells RelayHangsUp
        RoomForSnapshots PatienceEnds LossTold UnreadKept FencedTold NeverComes Printable ForkedLocks OwnCall
        EndBound EndAtOnce HungDisk JobShare;
    "R7":
        RoomOfPrune FullPruned LostGoes LeftoversFirst RecordCopied Withdrawn GivenUpGoes OwnRoute LivingRoute;
    "R8":
        PlainName NoLink RegularFile ReplicaOwner FetchedName GroupShared Owner Mac MacHead BulkKind
        NetCipher NetHeader NetNonce NetDowngrade FrameOrder CallerProof ListenerProof SpokenFor ForeignFiles
        SilentFirst PeerUser NoFork FileLimit Tag BoundExtent BoundContainer Nonce Salt KeyCheck
        ClaimSeal LinkedJob JobProven RecordMac RecordOfJob MembersOwn HeaderMac UnsealedRefused
        PlainRefused V1Refused PlainExtent SealedTogether OtherKeyNewer SameKey KeyOwner KeyHidden
        KeyUnsaid KeyWiped HiddenCrc StoreTenant MungeFresh MungeSealed MungeUser SmallStack
        RouteBudget StandardStreams ForkedChild Uncancelled;
    "R9":
        CountBound NothingFollows EnvelopeLength ManifestBounds NameExact EncodedLength StoredLength
        CborDepth ItemsBound TextBound NotesBound RecordBound TrailerBounds SmallBound RegionSum
        Announced ReferredBound PieceInSegment AdoptionRanks AdoptionVersion HalfOpen Descriptors
        PoolSeals PinBudget PinThere PoolSize PoolBudget GroupLimits LedgerForgets ReplicaMemory
        ReplicaBudget ReplicaRoom ParityRoom FrameLength StoreCredit Revoked StoreVersion Quota QuotaLook
        QuotaTurn QuotaOrder QuotaLength QuotaOpen QuotaEntries QuotaDeep QuotaRecount PullStalled
        PullBound OrdinaryShare ScrubRate;
    "A10":
        KeptAscends KeptVerified KeptOfCommit;
    "A11":
        KeptAlone KeptForgotten KeptWiped;
    "C7":
        CopyCountsFirst;
    "T1":
        ScavengeAsks ScavengePatience ScavengeDamaged ScavengeRecorded UnreadNewer CopyRefers
        CopyErrors;
    "T2":
        ScavengeWaits CopyLastLook;
    "T3":
        ScavengeUnseen AgentsAsked NodeRecognised ScavengeMore;
    "V1":
        PaceAlone LevelOwed DueToAll FutureIsDue;
    "V2":
        WaitedWhereItGoes OutcomeKept NewestOfEach;
    "V3":
        LastToStrongest;
    "V4":
        HomeAtLevel SlowHeld;
    "N2":
        ListTotal AllRanksThere;
    "N3":
        PartsOverlap;
    "N4":
        RankCount;
    "M1":
        StagedComplete StageOnce;
    "M2":
        StagedSynced StagedAgain;
    "M3":
        ReplaceDurable;
    "M4":
        MountFailureTold;
    "M6":
        StagedFile StagedThisStart StagedNew;
    "M7":
        SetComplete SetBrokenOff SetSpoiled SetAside SetBeside SetDurable SetPath MeetingOwner;
    "W1":
        OtherNames;
    "N1":
        WantedTwice PlaceInUse SharedVerified;
}

/// Whether this protection is taken away: never, in this build.
#[cfg(not(orcheck_sabotage))]
#[inline(always)]
#[must_use]
pub const fn off(_: Switch) -> bool {
    false
}

/// Whether this protection is taken away in this process.
///
/// # Panics
/// When `ORCHECK_SABOTAGE` names no switch.
#[cfg(orcheck_sabotage)]
#[allow(clippy::disallowed_methods)]
#[must_use]
pub fn off(switch: Switch) -> bool {
    static CHOSEN: std::sync::OnceLock<Option<Switch>> = std::sync::OnceLock::new();
    let chosen = CHOSEN.get_or_init(|| {
        let name = std::env::var("ORCHECK_SABOTAGE").ok()?;
        let found = Switch::ALL.iter().find(|(_, known, ..)| *known == name);
        assert!(
            found.is_some(),
            "ORCHECK_SABOTAGE={name}: there is no such switch"
        );
        found.map(|(switch, ..)| *switch)
    });
    *chosen == Some(switch)
}
