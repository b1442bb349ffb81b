//! Identifies callers by MUNGE: a credential of the site's daemon takes the place of a key that
//! somebody has to hand out.
//!
//! How: the caller makes a fresh key for one connection and has `munged` seal it into a credential,
//! encrypted with the site's realm key and only for the user of the listener. It sends the
//! credential, and then both sides complete the handshake with that key as with any other. The
//! listener has its own `munged` open the credential, which yields the key and the user who made
//! it. The library, `libmunge.so.2`, is loaded on demand; there is no substitute for it.
//!
//! Invariants
//! 1. A credential is only a key: whoever replays a recorded one does not know the key in it, and
//!    the listener's proof shows that it could open it.
//! 2. A listener accepts only credentials that are encrypted and for its own user; any other could
//!    have revealed its key to others.
//! 3. The key of a connection is in no other credential, and is forgotten with the handshake.
//! 4. A refusal is answered with its reason, which contains nothing secret.
//!
//! Faults survived: credentials of another realm, too old, repeated, or of users unknown here; a
//! missing `munged`. One that hangs delays a listener for as long as libmunge waits for it (a few
//! seconds).
//!
//! Not here: the handshake (`handshake.rs`), which directory a user has (`orcheck_staging`). This
//! module uses `unsafe` because it calls a C library.

use super::key::Key;
use libloading::os::unix::Library as Loaded;
use orcheck_format::sabotage::{Switch, off};
use orcheck_format::{Detail, Error, Result};
use orcheck_io::rng::random_bytes;
use orcheck_io::user::env_var;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::mem::ManuallyDrop;
use std::ptr;
use std::sync::OnceLock;
use zeroize::{Zeroize, Zeroizing};

/// Where munged listens, if not at the default of libmunge.
pub(crate) const SOCKET_VARIABLE: &str = "ORCHECK_MUNGE_SOCKET";
/// Length of the longest credential that a listener accepts.
pub(super) const CREDENTIAL_MAX: usize = 4096;
/// Prefix of every credential; other programs use the same realm.
const LABEL: [u8; 8] = *b"ORCmung1";
const KEY_BYTES: usize = 32;

const OPT_CIPHER: c_int = 0;
const OPT_MAC: c_int = 1;
const OPT_SOCKET: c_int = 8;
const OPT_UID_RESTRICTION: c_int = 9;
/// AES-128 and AES-256 are 4 and 5; lower numbers are none, or older.
const CIPHER_AES128: c_int = 4;
const CIPHER_AES256: c_int = 5;
const MAC_SHA256: c_int = 5;
const EXPIRED: c_int = 15;
const REWOUND: c_int = 16;
const REPLAYED: c_int = 17;
const UNAUTHORIZED: c_int = 18;

/// Why a listener refuses a caller, as the caller is told: one byte, and the user of the listener.
pub(super) mod refusal {
    pub const NO_MUNGE: u8 = 100;
    pub const STRANGE: u8 = 101;
    pub const UNKNOWN_USER: u8 = 102;
    pub const NOT_SEALED: u8 = 103;
}

type Context = *mut c_void;

struct Library {
    create: unsafe extern "C" fn() -> Context,
    destroy: unsafe extern "C" fn(Context),
    set: unsafe extern "C" fn(Context, c_int, ...) -> c_int,
    get: unsafe extern "C" fn(Context, c_int, ...) -> c_int,
    encode: unsafe extern "C" fn(*mut *mut c_char, Context, *const c_void, c_int) -> c_int,
    decode: unsafe extern "C" fn(
        *const c_char,
        Context,
        *mut *mut c_void,
        *mut c_int,
        *mut u32,
        *mut u32,
    ) -> c_int,
    text: unsafe extern "C" fn(c_int) -> *const c_char,
}

/// The library, loaded once.
///
/// # Errors
/// Unsupported if it is not installed.
fn library() -> Result<&'static Library> {
    static LIBRARY: OnceLock<std::result::Result<Library, String>> = OnceLock::new();
    LIBRARY.get_or_init(load).as_ref().map_err(|why| {
        Error::unsupported(format!("MUNGE is configured and cannot be used: {why}"))
            .next("install libmunge (package libmunge2), or use a key")
    })
}

#[allow(unsafe_code)]
fn load() -> std::result::Result<Library, String> {
    // SAFETY: a name that ends in NUL; the library runs no code of ours, and stays loaded for ever.
    let loaded = unsafe { Loaded::open(Some("libmunge.so.2"), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    let loaded = loaded.map_err(|error| format!("libmunge.so.2 cannot be loaded: {error}"))?;
    let loaded = ManuallyDrop::new(loaded);
    // SAFETY: the handle is that of a loaded library, the name ends in NUL.
    // SAFETY: these are the functions of these names in version 2 of the library's interface, with
    // these arguments (munge.h); a pointer to a function is as long as one to data on every machine
    // that Orcheck runs on.
    unsafe {
        Ok(Library {
            create: find(&loaded, "munge_ctx_create")?,
            destroy: find(&loaded, "munge_ctx_destroy")?,
            set: find(&loaded, "munge_ctx_set")?,
            get: find(&loaded, "munge_ctx_get")?,
            encode: find(&loaded, "munge_encode")?,
            decode: find(&loaded, "munge_decode")?,
            text: find(&loaded, "munge_strerror")?,
        })
    }
}

/// # Safety
/// What has this name is an `F`, a function that is called while the library is loaded only.
#[allow(unsafe_code)]
unsafe fn find<F: Copy>(loaded: &Loaded, name: &str) -> std::result::Result<F, String> {
    // SAFETY: as the caller promises.
    let found = unsafe { loaded.get::<F>(name) };
    found
        .map(|function| *function)
        .map_err(|_| format!("libmunge.so.2 has no {name}"))
}

#[allow(unsafe_code)]
fn said(library: &Library, code: c_int) -> String {
    // SAFETY: it gives a constant text that ends in NUL, for any number.
    let text = unsafe { (library.text)(code) };
    if text.is_null() {
        return format!("error {code}");
    }
    // SAFETY: as above.
    let text = unsafe { CStr::from_ptr(text) };
    text.to_string_lossy().into_owned()
}

/// A context of the library, with the address of munged.
struct Asked {
    library: &'static Library,
    context: Context,
}

impl Asked {
    #[allow(unsafe_code)]
    fn new(socket: Option<&str>) -> Result<Asked> {
        let library = library()?;
        // SAFETY: no arguments; null is the only failure.
        let context = unsafe { (library.create)() };
        if context.is_null() {
            return Err(Error::unavailable("libmunge has no memory"));
        }
        let asked = Asked { library, context };
        if let Some(socket) = socket {
            let socket = CString::new(socket)
                .map_err(|_| Error::invalid("the path of munged's socket contains a NUL byte"))?;
            // SAFETY: this option takes a text that ends in NUL, which the library copies.
            let code = unsafe { (library.set)(context, OPT_SOCKET, socket.as_ptr()) };
            asked.check(code, "name munged's socket")?;
        }
        Ok(asked)
    }

    #[allow(unsafe_code)]
    fn set(&self, option: c_int, value: c_int) -> Result<()> {
        // SAFETY: the options that are set here take an int (or a uid_t, which is as long).
        let code = unsafe { (self.library.set)(self.context, option, value) };
        self.check(code, "set an option")
    }

    #[allow(unsafe_code)]
    fn get(&self, option: c_int) -> Option<c_int> {
        let mut value: c_int = 0;
        // SAFETY: the options that are asked for here give an int (or a uid_t) to that address.
        let code = unsafe { (self.library.get)(self.context, option, &raw mut value) };
        (code == 0).then_some(value)
    }

    fn check(&self, code: c_int, what: &str) -> Result<()> {
        if code == 0 {
            return Ok(());
        }
        let why = said(self.library, code);
        Err(Error::unavailable(format!("MUNGE: {what}: {why}"))
            .next("check that munged runs on this host, and its log"))
    }
}

impl Drop for Asked {
    #[allow(unsafe_code)]
    fn drop(&mut self) {
        // SAFETY: made by this library, and not used any more.
        unsafe { (self.library.destroy)(self.context) };
    }
}

/// How a caller identifies its user.
#[derive(Debug, Clone)]
pub struct AsUser {
    /// The user of the listener.
    pub server_uid: u32,
    /// Whether traffic is encrypted, as in [`Key`].
    pub encrypt: bool,
    /// Where munged listens; `None`: at the default of libmunge.
    pub socket: Option<String>,
}

impl AsUser {
    /// A caller of a listener of this user; munged is where [`SOCKET_VARIABLE`] says.
    #[must_use]
    pub fn new(server_uid: u32, encrypt: bool) -> AsUser {
        AsUser {
            server_uid,
            encrypt,
            socket: socket(),
        }
    }
}

fn socket() -> Option<String> {
    env_var(SOCKET_VARIABLE).filter(|path| !path.is_empty())
}

/// A fresh key, and the credential that reveals it to the listener's user in this realm.
///
/// # Errors
/// Unsupported without libmunge; Unavailable if munged does not answer.
#[allow(unsafe_code)]
pub(super) fn seal(caller: &AsUser) -> Result<(Key, Vec<u8>)> {
    let asked = Asked::new(caller.socket.as_deref())?;
    asked.set(OPT_CIPHER, CIPHER_AES256)?;
    asked.set(OPT_MAC, MAC_SHA256)?;
    asked.set(OPT_UID_RESTRICTION, caller.server_uid.cast_signed())?;
    let key: [u8; KEY_BYTES] = random_bytes();
    let payload = Zeroizing::new([LABEL.as_slice(), &key].concat());
    let mut made: *mut c_char = ptr::null_mut();
    let (from, len) = (payload.as_ptr().cast(), payload.len() as c_int);
    // SAFETY: the payload is so long and lives during the call; the credential comes as memory of
    // malloc.
    let code = unsafe { (asked.library.encode)(&raw mut made, asked.context, from, len) };
    asked.check(code, "make a credential")?;
    // SAFETY: after success it is a text that ends in NUL, from malloc, and nobody else has it.
    let credential = unsafe {
        let credential = CStr::from_ptr(made).to_bytes().to_vec();
        libc::free(made.cast());
        credential
    };
    match credential.len() <= CREDENTIAL_MAX {
        true => Ok((
            Key {
                bytes: key,
                encrypt: caller.encrypt,
            },
            credential,
        )),
        false => Err(Error::unsupported(format!(
            "MUNGE made a credential of {} bytes: expected at most {CREDENTIAL_MAX}",
            credential.len()
        ))),
    }
}

/// The key in a credential and the user who made it, or why it is refused: an error of libmunge, or
/// one of [`refusal`].
#[allow(unsafe_code)]
pub(super) fn open(
    credential: &[u8],
    users: &Users,
) -> std::result::Result<([u8; KEY_BYTES], u32), u8> {
    let asked = Asked::new(users.socket.as_deref()).map_err(|_| refusal::NO_MUNGE)?;
    let text = CString::new(credential).map_err(|_| refusal::STRANGE)?;
    let (mut made, mut len, mut uid, mut gid) = (ptr::null_mut::<c_void>(), 0, u32::MAX, u32::MAX);
    // SAFETY: a text that ends in NUL, and places of the right types for what comes back.
    let code = unsafe {
        (asked.library.decode)(
            text.as_ptr(),
            asked.context,
            &raw mut made,
            &raw mut len,
            &raw mut uid,
            &raw mut gid,
        )
    };
    let mut payload = Zeroizing::new(Vec::new());
    if !made.is_null() {
        let count = usize::try_from(len).unwrap_or(0);
        // SAFETY: memory of malloc that holds this many bytes (also for a credential that is too
        // old or repeated), which nobody else has; it is overwritten before it is given back.
        unsafe {
            let bytes = std::slice::from_raw_parts_mut(made.cast::<u8>(), count);
            payload.extend_from_slice(bytes);
            bytes.zeroize();
            libc::free(made);
        }
    }
    // Breaks if: munged's verdict on time and repetition is ignored.
    let late = matches!(code, EXPIRED | REWOUND | REPLAYED) && off(Switch::MungeFresh);
    if code != 0 && !late {
        return Err(u8::try_from(code).unwrap_or(refusal::STRANGE));
    }
    let cipher = asked.get(OPT_CIPHER).unwrap_or(0);
    let for_uid = asked.get(OPT_UID_RESTRICTION).map(i32::cast_unsigned);
    let sealed = cipher >= CIPHER_AES128 && for_uid == Some(users.own_uid);
    // Breaks if: it is accepted all the same; others could have read the key and impersonate the
    // user who made it.
    if !sealed && !off(Switch::MungeSealed) {
        return Err(refusal::NOT_SEALED);
    }
    let key = payload
        .strip_prefix(&LABEL)
        .and_then(|key| key.try_into().ok());
    key.map(|key| (key, uid)).ok_or(refusal::STRANGE)
}

/// The error of a caller whose credential was refused.
pub(super) fn refused(code: u8, listener_uid: u32) -> Error {
    let code_of_library = c_int::from(code);
    let (why, next) = match code {
        refusal::NO_MUNGE => (
            "the listener takes no MUNGE credentials".to_owned(),
            "use a key, or start the server with --munge where libmunge is installed".to_owned(),
        ),
        refusal::UNKNOWN_USER => (
            "the listener serves no such user".to_owned(),
            "have it started with --munge and the number of this user".to_owned(),
        ),
        refusal::NOT_SEALED => (
            "the credential is not encrypted for the listener alone".to_owned(),
            format!("write munge={listener_uid} in the address"),
        ),
        _ if code_of_library == UNAUTHORIZED => (
            format!(
                "the credential is for another user than the listener, which is user {listener_uid}"
            ),
            format!("write munge={listener_uid} in the address"),
        ),
        _ => {
            let why = library().map(|library| said(library, code_of_library));
            (
                why.unwrap_or_else(|_| format!("error {code}")),
                "check that munged on both hosts has the same key and the same time".to_owned(),
            )
        }
    };
    let error = Error::unavailable(format!("MUNGE credential refused: {why}")).next(next);
    match code {
        refusal::UNKNOWN_USER => error.with(Detail::Denied),
        _ => error,
    }
}

/// The users whom a listener knows by their number.
#[derive(Debug, Clone, Default)]
pub struct Users {
    known: Vec<(u32, usize)>,
    encrypt: bool,
    own_uid: u32,
    socket: Option<String>,
}

impl Users {
    /// Users, each with the number that the listener reports for them; `encrypt` as in [`Key`].
    ///
    /// # Errors
    /// Unsupported without libmunge.
    pub fn new(known: Vec<(u32, usize)>, encrypt: bool) -> Result<Users> {
        library()?;
        let own_uid = orcheck_io::machine::effective_uid();
        Ok(Users {
            known,
            encrypt,
            own_uid,
            socket: socket(),
        })
    }

    /// The same with munged at this address.
    #[must_use]
    pub fn with_munged_at(self, socket: String) -> Users {
        let socket = Some(socket);
        Users { socket, ..self }
    }

    pub(super) fn own_uid(&self) -> u32 {
        self.own_uid
    }

    /// The user who made a credential, and the key in it, or why it is refused.
    pub(super) fn admit(&self, credential: &[u8]) -> std::result::Result<(usize, Key), u8> {
        let (bytes, uid) = open(credential, self)?;
        let mut known = self.known.iter();
        // Breaks if: the first one is taken; users would see each other's files.
        let which = known.find(|(known, _)| *known == uid || off(Switch::MungeUser));
        let (_, which) = which.ok_or(refusal::UNKNOWN_USER)?;
        let encrypt = self.encrypt;
        Ok((*which, Key { bytes, encrypt }))
    }
}
