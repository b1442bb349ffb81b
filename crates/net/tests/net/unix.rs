//! Tests what only Unix sockets can do: pass descriptors, and learn the peer's user from the
//! kernel.

use super::*;

#[test]
fn descriptors_travel_in_their_place() {
    let (mut one, mut two) = pair(&unix());
    let shape = PoolShape {
        chunk_bytes: 4096,
        chunk_count: 2,
        words: 1,
        rings: 0,
        ring_entries: 0,
    };
    let pool = Pool::create(shape).unwrap();
    one.send(&hello(1), LIMIT).unwrap();
    one.send_fd(pool.fd(), LIMIT).unwrap();
    one.send(&hello(2), LIMIT).unwrap();
    assert_eq!(
        two.receive_fd(LIMIT).unwrap_err().kind(),
        ErrorKind::Invalid
    );
    assert_eq!(two.receive(LIMIT).unwrap(), hello(1));
    assert_eq!(two.receive(LIMIT).unwrap_err().kind(), ErrorKind::Invalid);
    let other = Pool::attach(two.receive_fd(LIMIT).unwrap()).unwrap();
    assert_eq!(two.receive(LIMIT).unwrap(), hello(2));
    let chunk = pool.take(0, LIMIT).unwrap();
    pool.put(&chunk, 0, b"shared");
    assert_eq!(other.read_bytes(0, 6).unwrap(), b"shared");
    pool.give(chunk);
    assert_eq!(
        two.receive_fd(SOON).unwrap_err().kind(),
        ErrorKind::Unavailable
    );
    let (mut over_tcp, _other) = pair(&tcp());
    assert_eq!(
        over_tcp.send_fd(pool.fd(), LIMIT).unwrap_err().kind(),
        ErrorKind::Unsupported
    );
}

// Breaks if: more is taken from the socket than a piece has; the descriptor right behind it would
// be lost.
#[test]
fn a_descriptor_right_behind_a_piece_arrives() {
    let (mut one, mut two) = pair(&unix());
    let file = std::fs::File::open("/dev/null").unwrap();
    let bytes: Vec<u8> = (0..300_000u32).map(|i| i as u8).collect();
    let place = Place {
        slot: 3,
        at_bytes: 7,
    };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..3 {
                send_piece(&mut one, place, &bytes);
                one.send_fd(file.as_fd(), LIMIT).unwrap();
            }
        });
        for _ in 0..3 {
            let mut came = vec![0; bytes.len()];
            assert!(matches!(
                two.receive_any(LIMIT),
                Ok(Received::Bytes(300_000))
            ));
            assert_eq!(take_piece(&mut two, &mut came).unwrap(), place);
            assert!(came == bytes);
            two.receive_fd(LIMIT).unwrap();
        }
    });
}

#[test]
fn another_user_is_a_stranger_on_a_unix_socket() {
    if orcheck_io::machine::effective_uid() != 0 {
        println!(
            "SKIPPED another_user_is_a_stranger_on_a_unix_socket: needs root to become another user"
        );
        return;
    }
    let listener = Listener::bind(&unix()).unwrap();
    let at = listener.address();
    let Address::Abstract(name) = &at else {
        unreachable!()
    };
    let child = Child::run(|| {
        // SAFETY: changes this child's user only.
        #[allow(unsafe_code)]
        let changed = unsafe { libc::syscall(libc::SYS_setresuid, 65534, 65534, 65534) };
        if changed != 0 {
            return 2;
        }
        // Right key, wrong user, and it sees that the other end is not its own user either.
        let refused = Conn::connect(&at, &key(), &Failpoints::none(), LIMIT)
            .is_err_and(|error| error.message().contains("user"));
        // The same without our library's politeness.
        let raw = std::os::unix::net::SocketAddr::from_abstract_name(name).unwrap();
        let mut stream = UnixStream::connect_addr(&raw).unwrap();
        let _ = stream.write_all(b"ORCnet2\n0123456789abcdef0123456789abcdef");
        // Breaks if: the listener does not compare the user.
        let dropped = stream.read_exact(&mut [0; 64]).is_err();
        i32::from(!refused) + 10 * i32::from(!dropped)
    });
    let until = Instant::now() + Duration::from_millis(300);
    while Instant::now() < until {
        assert!(
            listener
                .accept(&key(), &Failpoints::none(), SOON)
                .unwrap()
                .is_none()
        );
    }
    assert_eq!(child.wait(LIMIT), Ended::Exited(0));
}
