! The Fortran module: regions of several types and ranks, refused sections, a slice of a global array
! with ghost cells, sizes before memory, restart. Two ranks.
program session
  use mpi
  use orcheck
  use, intrinsic :: iso_c_binding
  use, intrinsic :: iso_fortran_env, only: int16, int32, int64, real32, real64, error_unit
  implicit none

  type particle
    real(real64) :: x
    integer(int32) :: id, kind
  end type

  integer, parameter :: nx = 12, ny = 9
  integer :: ierr, rank, ranks
  character(len=4096) :: options

  call MPI_Init(ierr)
  call MPI_Comm_rank(MPI_COMM_WORLD, rank, ierr)
  call MPI_Comm_size(MPI_COMM_WORLD, ranks, ierr)
  call get_environment_variable('ORC_TEST_OPTIONS', options)
  call misuse()
  call save()
  call restore()
  call resize()
  call told()
  call files()
  call without()
  call MPI_Finalize(ierr)
  if (rank == 0) print '(a)', 'fortran: ok'

contains

  ! What orc_watch calls: counts, and keeps the last text where the program wants it.
  subroutine on_event(ctx, event) bind(c)
    type(c_ptr), value :: ctx
    type(orc_event_t), intent(in) :: event
    integer(c_int), pointer :: counts(:)
    call c_f_pointer(ctx, counts, [3])
    counts(event%kind) = counts(event%kind) + 1
    if (event%kind == ORC_EVENT_LOST) then
      if (event%status == ORC_FENCED .and. event%level == ORC_GLOBAL .and. event%step == 2 .and. &
        index(orc_event_text(event), 'checkpoint 2 is lost') > 0) counts(3) = 1
    end if
  end subroutine

  subroutine told()
    type(orc_session_t) :: s, other
    type(orc_stats_t) :: stats
    real(real64), target :: u(100)
    integer(c_int), target :: counts(3)
    integer(int64) :: step
    integer :: status
    u = rank
    counts = 0
    call orc_mpi_open(s, MPI_COMM_WORLD, 'told', trim(options), status)
    call check(status == ORC_OK, 'open told')
    call orc_watch(s, status, on_event, c_loc(counts))
    call check(status == ORC_OK, 'watch')
    call orc_protect(s, 'u', u, status)
    call orc_safe_step(s, ORC_GLOBAL, step, status)
    call check(status == ORC_NOT_FOUND, 'nothing safe yet')
    call orc_checkpoint(s, 1_int64, status, level=ORC_GLOBAL)
    call orc_wait(s, 1_int64, ORC_GLOBAL, 30.0_real64, status)
    call check(status == ORC_OK .and. counts(ORC_EVENT_SAFE) == 1, 'told that it is safe')
    call orc_safe_step(s, ORC_GLOBAL, step, status)
    call check(status == ORC_OK .and. step == 1, 'safe step')
    call MPI_Barrier(MPI_COMM_WORLD, ierr)
    call orc_mpi_open(other, MPI_COMM_WORLD, 'told', trim(options) // new_line('a') // 'take_over = true', status)
    call check(status == ORC_OK, 'open the other run')
    call orc_checkpoint(s, 2_int64, status)
    call orc_wait(s, 2_int64, ORC_GLOBAL, 30.0_real64, status)
    call check(status == ORC_FENCED .and. counts(ORC_EVENT_LOST) == 1 .and. counts(3) == 1, 'told that it is lost')
    call orc_checkpoint(s, 3_int64, status)
    call check(status == ORC_FENCED, 'fenced')
    call orc_stats_read(s, stats, status)
    call check(stats%lost_steps(0, ORC_GLOBAL) == 1 .and. stats%lost_steps(ORC_FENCED, ORC_GLOBAL) == 1, 'lost steps')
    call orc_abandon(s)
    call orc_close(other, 30.0_real64, status)
    call check(status == ORC_OK, 'close the other run')
  end subroutine

  !> Files that the program writes itself; the optional one is absent at the checkpoint.
  subroutine files()
    type(orc_session_t) :: s
    character(len=:), allocatable :: mesh, rare
    character(len=20) :: line
    integer(int64) :: step
    integer :: status, unit, round
    logical :: there
    do round = 1, 2
      call orc_mpi_open(s, MPI_COMM_WORLD, 'files', trim(options), status)
      call check(status == ORC_OK, 'open files')
      call orc_find(s, step, status)
      call orc_route(s, 'out/mesh', mesh, status)
      call check(status == ORC_OK, 'route')
      call orc_route(s, 'out/step/rare', rare, status, flags=ORC_OPTIONAL)
      call check(status == ORC_OK, 'route an optional file')
      call orc_route(s, 'out', mesh, status)
      call refused(status, 'is a file too')
      call orc_route(s, 'out/mesh', mesh, status)
      if (round == 1) then
        open (newunit=unit, file=mesh, action='write', status='new')
        write (unit, '(a,i0)') 'rank ', rank
        close (unit)
        call orc_checkpoint(s, 1_int64, status)
        call check(status == ORC_OK, 'checkpoint of files')
      else
        call check(step == 1, 'find files')
        open (newunit=unit, file=rare, action='write', status='new')
        close (unit)
        call orc_restart(s, step, status)
        call check(status == ORC_OK, 'restart of files')
        open (newunit=unit, file=mesh, action='read', status='old')
        read (unit, '(a)') line
        close (unit)
        call check(line == 'rank ' // achar(iachar('0') + rank), 'the file came back')
        inquire (file=rare, exist=there)
        call check(.not. there, 'what was absent is absent')
      end if
      call orc_close(s, 30.0_real64, status)
      call check(status == ORC_OK, 'close files')
    end do
  end subroutine

  subroutine check(ok, what)
    logical, intent(in) :: ok
    character(len=*), intent(in) :: what
    if (ok) return
    write (error_unit, '(a)') 'not true: ' // what // ' [' // orc_message() // ']'
    flush (error_unit)
    call MPI_Abort(MPI_COMM_WORLD, 1, ierr)
  end subroutine

  subroutine refused(status, piece)
    integer, intent(in) :: status
    character(len=*), intent(in) :: piece
    call check(status == ORC_INVALID .and. index(orc_message(), piece) > 0, 'refused: ' // piece)
  end subroutine

  pure function cell(i, j, step) result(value)
    integer, intent(in) :: i, j
    integer(int64), intent(in) :: step
    real(real64) :: value
    value = real(step, real64) * 1e6_real64 + i * 1e3_real64 + j
  end function

  subroutine assumed_size(s, u, status)
    type(orc_session_t), intent(in) :: s
    real(real64), intent(inout), target :: u(*)
    integer, intent(out) :: status
    call orc_protect(s, 'u', u, status)
  end subroutine

  subroutine misuse()
    type(orc_session_t) :: s
    type(particle), target :: p(4)
    real(real64), target :: u(10, 10), v(8)
    logical :: due
    integer(int64) :: step
    integer :: status
    call orc_checkpoint(s, 1_int64, status)
    call refused(status, 'session is NULL')
    call orc_mpi_open(s, MPI_COMM_NULL, 'fortran', options, status)
    call refused(status, 'MPI_COMM_NULL')
    call orc_mpi_open(s, MPI_COMM_WORLD, 'a/b', options, status)
    call refused(status, 'job')
    call orc_mpi_open(s, MPI_COMM_SELF, 'misuse' // achar(iachar('0') + rank), options, status)
    call check(status == ORC_OK, 'open')
    call orc_protect(s, 'u', u(1:10:2, :), status)
    call refused(status, 'not contiguous')
    call orc_protect(s, 'u', u(2:9, 2:9), status)
    call refused(status, 'not contiguous')
    call orc_protect(s, 'v', v(8:1:-1), status)
    call refused(status, 'not contiguous')
    call assumed_size(s, v, status)
    call refused(status, 'assumed-size')
    call orc_protect_array(s, 'v', v(8:1:-1), global=[8], offset=[0], ierr=status)
    call refused(status, 'backwards')
    call orc_protect_array(s, 'v', v, global=[8, 8], offset=[0], ierr=status)
    call refused(status, 'one number for each dimension')
    call orc_protect_array(s, 'v', v, global=[7], offset=[0], ierr=status)
    call refused(status, 'does not fit')
    call orc_protect_array(s, 'p', p, global=[4], offset=[0], ierr=status)
    call refused(status, 'orc_protect')
    call orc_protect(s, 'v', v, status, flags=64)
    call refused(status, 'flags')
    ! Contiguous sections are fine.
    call orc_protect(s, 'u', u(:, 2:5), status)
    call check(status == ORC_OK, 'contiguous section')
    call orc_unprotect(s, 'u', status)
    call check(status == ORC_OK, 'unprotect')
    call orc_unprotect(s, 'u', status)
    call check(status == ORC_NOT_FOUND, 'unprotect again')
    call orc_restart(s, step, status)
    call refused(status, 'find')
    call orc_due(s, 1_int64, due, status)
    call check(status == ORC_OK .and. .not. due, 'due')
    call check(.not. orc_should_stop(s), 'should_stop')
    call orc_abandon(s)
    call orc_close(s, 1.0_real64, status)
    call refused(status, 'session is NULL')
  end subroutine

  subroutine save()
    type(orc_session_t) :: s
    type(orc_stats_t) :: stats
    type(particle), allocatable, target :: p(:)
    type(c_ptr) :: address
    real(real64), allocatable, target :: u(:, :)
    real(real64), pointer :: lent(:)
    complex(real64), target :: z(3, 2, 2)
    integer(int16), target :: small(5)
    integer(int64), target :: time
    logical, target :: flags(3)
    character(len=10), target :: label(2)
    real(real32), allocatable, target :: nothing(:)
    integer(int64) :: step
    integer :: status, i, j
    logical :: due
    call orc_mpi_open(s, MPI_COMM_WORLD, 'fortran', options, status)
    call check(status == ORC_OK, 'open')
    call orc_find(s, step, status)
    call check(status == ORC_NOT_FOUND .and. step == 0, 'find nothing')
    allocate (u(0:nx + 1, 0:ny + 1), p(5 + rank), nothing(0))
    call orc_alloc(s, 8000_int64, address, status)
    call check(status == ORC_OK, 'alloc')
    call c_f_pointer(address, lent, [1000])
    ! The inner cells, as they lie in memory, as part of a global array cut along y.
    call orc_protect_array(s, 'u', u(1:nx, 1:ny), global=[nx, ny * ranks], offset=[0, ny * rank], &
      ierr=status)
    call check(status == ORC_OK, 'protect_array')
    call orc_protect(s, 'p', p, status)
    call check(status == ORC_OK, 'protect p')
    call orc_protect(s, 'z', z, status)
    call check(status == ORC_OK, 'protect z')
    call orc_protect(s, 'small', small, status)
    call check(status == ORC_OK, 'protect small')
    call orc_protect(s, 'time', time, status, flags=ORC_SAME)
    call check(status == ORC_OK, 'protect time')
    call orc_protect(s, 'flags', flags, status)
    call check(status == ORC_OK, 'protect flags')
    call orc_protect(s, 'label', label, status)
    call check(status == ORC_OK, 'protect label')
    call orc_protect(s, 'nothing', nothing, status)
    call check(status == ORC_OK, 'protect nothing')
    call orc_protect(s, 'lent', lent, status)
    call check(status == ORC_OK, 'protect lent')
    do step = 1, 2
      u = -1
      do j = 1, ny
        do i = 1, nx
          u(i, j) = cell(i, j + ny * rank, step)
        end do
      end do
      do i = 1, size(p)
        p(i) = particle(real(step, real64) * i, i, rank)
      end do
      z = cmplx(real(step, real64), -1.0_real64, real64)
      z(2, 1, 2) = (7.0_real64, 8.0_real64)
      small = [1_int16, 2_int16, 3_int16, 4_int16, int(step, int16)]
      time = step
      flags = [.true., .false., step == 2]
      label = ['first     ', 'second    ']
      lent = real(step, real64)
      call orc_due(s, step, due, status)
      call check(status == ORC_OK, 'due')
      call orc_lend(s, 'lent', status)
      call check(status == ORC_OK, 'lend')
      call orc_checkpoint(s, step, status)
      call check(status == ORC_OK, 'checkpoint')
      call orc_lent_done(s, 'lent', 30.0_real64, status)
      call check(status == ORC_OK, 'lent_done')
    end do
    call orc_wait(s, 2_int64, ORC_GLOBAL, 30.0_real64, status)
    call check(status == ORC_OK, 'wait')
    call orc_stats_read(s, stats, status)
    call check(status == ORC_OK .and. stats%step == 2, 'stats')
    call orc_unprotect(s, 'lent', status)
    call orc_free(s, address, status)
    call check(status == ORC_OK, 'free')
    call orc_close(s, 30.0_real64, status)
    call check(status == ORC_OK, 'close')
  end subroutine

  subroutine restore()
    type(orc_session_t) :: s
    type(particle), allocatable, target :: p(:)
    real(real64), allocatable, target :: u(:, :), lent(:)
    complex(real64), target :: z(3, 2, 2)
    integer(int16), target :: small(5)
    integer(int64), target :: time
    logical, target :: flags(3)
    character(len=10), target :: label(2)
    integer(int64), allocatable :: local(:), global(:), offset(:)
    integer(int64) :: step, len_bytes
    integer :: status, i, j, dtype
    call orc_mpi_open(s, MPI_COMM_WORLD, 'fortran', options, status)
    call check(status == ORC_OK, 'reopen')
    call orc_find(s, step, status)
    call check(status == ORC_OK .and. step == 2, 'find')
    call orc_stored(s, 'u', status, local=local, global=global, offset=offset, dtype=dtype)
    call check(status == ORC_OK .and. dtype == ORC_F64, 'stored')
    call check(all(local == [nx, ny]) .and. all(global == [nx, ny * ranks]) .and. &
      all(offset == [0, ny * rank]), 'stored shape')
    call orc_stored(s, 'z', status, local=local, dtype=dtype)
    call check(status == ORC_OK .and. dtype == ORC_C128 .and. all(local == [3, 2, 2]), 'stored z')
    call orc_stored(s, 'small', status, dtype=dtype)
    call check(status == ORC_OK .and. dtype == ORC_I16, 'stored small')
    call orc_stored(s, 'p', status, len_bytes=len_bytes)
    call check(status == ORC_OK, 'stored p')
    allocate (u(0:nx + 1, 0:ny + 1), p(len_bytes / 16), lent(1000))
    call check(size(p) == 5 + rank, 'size of p')
    u = -5
    call orc_protect_array(s, 'u', u(1:nx, 1:ny), global=[int(nx, int64), int(ny * ranks, int64)], &
      offset=[0_int64, int(ny * rank, int64)], ierr=status)
    call check(status == ORC_OK, 'protect_array again')
    call orc_protect(s, 'p', p, status)
    call orc_protect(s, 'z', z, status)
    call orc_protect(s, 'small', small, status)
    call orc_protect(s, 'time', time, status, ORC_SAME)
    call orc_protect(s, 'flags', flags, status)
    call orc_protect(s, 'label', label, status)
    call orc_protect(s, 'lent', lent, status)
    call orc_restart(s, step, status)
    call check(status == ORC_OK .and. step == 2, 'restart')
    do j = 0, ny + 1
      do i = 0, nx + 1
        if (i == 0 .or. j == 0 .or. i > nx .or. j > ny) then
          call check(u(i, j) == -5, 'ghost cells are left alone')
        else
          call check(u(i, j) == cell(i, j + ny * rank, step), 'u')
        end if
      end do
    end do
    do i = 1, size(p)
      call check(p(i)%x == 2 * i .and. p(i)%id == i .and. p(i)%kind == rank, 'p')
    end do
    call check(z(2, 1, 2) == (7.0_real64, 8.0_real64) .and. z(3, 2, 2) == (2.0_real64, -1.0_real64), 'z')
    call check(all(small == [1, 2, 3, 4, 2]) .and. time == 2, 'small')
    call check(flags(1) .and. .not. flags(2) .and. flags(3), 'flags')
    call check(label(1) == 'first' .and. label(2) == 'second', 'label')
    call check(all(lent == 2), 'lent')
    call orc_close(s, 30.0_real64, status)
    call check(status == ORC_OK, 'close again')
  end subroutine

  ! An array whose size changes, and whose newest step is damaged: asked again, and at the older step.
  subroutine resize()
    type(orc_session_t) :: s
    real(real64), allocatable, target :: p(:)
    integer(int64), allocatable :: n(:)
    integer(int64) :: step, found
    integer :: status, asked
    call orc_mpi_open(s, MPI_COMM_WORLD, 'resize', options, status)
    call check(status == ORC_OK, 'open for sizes')
    call orc_find(s, step, status)
    do step = 1, 3
      if (allocated(p)) deallocate (p)
      allocate (p(9000 + 100 * step))
      p = real(step, real64)
      call orc_protect(s, 'p', p, status)
      call orc_checkpoint(s, step, status)
      call check(status == ORC_OK, 'checkpoint of another size')
    end do
    call orc_close(s, 30.0_real64, status)
    if (rank == 0) call execute_command_line('sh "$HERE/damage.sh" resize')
    call MPI_Barrier(MPI_COMM_WORLD, ierr)
    call orc_mpi_open(s, MPI_COMM_WORLD, 'resize', options, status)
    call orc_find(s, step, status)
    call check(status == ORC_OK .and. step == 3, 'find the damaged one')
    asked = 0
    do
      call orc_stored(s, 'p', status, local=n)
      asked = asked + 1
      if (allocated(p)) deallocate (p)
      allocate (p(n(1)))
      call orc_protect(s, 'p', p, status)
      call orc_restart(s, step, status)
      if (status /= ORC_AGAIN) exit
    end do
    call check(status == ORC_OK .and. step == 2 .and. asked == 2, 'asked again')
    call check(size(p) == 9200 .and. all(p == 2), 'the older step')
    call orc_reject(s, step, status)
    call check(status == ORC_OK, 'reject')
    call orc_find_step(s, ORC_EXACTLY, 2_int64, found, status)
    call check(status == ORC_NOT_FOUND, 'a rejected step is not there')
    call orc_find_step(s, ORC_OLDER_THAN, 3_int64, found, status)
    call check(status == ORC_OK .and. found == 1, 'an older step')
    deallocate (p)
    allocate (p(9100))
    call orc_protect(s, 'p', p, status)
    call orc_restart_region(s, 'p', status)
    call check(status == ORC_OK .and. all(p == 1), 'one region')
    call orc_close(s, 30.0_real64, status)
    call check(status == ORC_OK, 'close after sizes')
  end subroutine

  ! No directory: the program runs without checkpoints.
  subroutine without()
    type(orc_session_t) :: s
    type(orc_stats_t) :: stats
    type(c_ptr) :: address
    real(real64), target :: u(4, 5)
    real(real64), pointer :: v(:)
    character(len=:), allocatable :: path
    integer(int64) :: step
    integer :: status, unit
    logical :: due, there
    call orc_mpi_open(s, MPI_COMM_WORLD, 'without', 'enabled = "auto"', status)
    call check(status == ORC_OK, 'open without a directory')
    if (rank == 0) call check(index(orc_message(), 'runs without checkpoints') > 0, 'said once')
    call orc_protect(s, 'u', u, status)
    call check(status == ORC_OK, 'protect without')
    call orc_protect(s, 'u', u(1:4:2, :), status)
    call refused(status, 'not contiguous')
    call orc_alloc(s, 800_int64, address, status)
    call check(status == ORC_OK, 'alloc without')
    call c_f_pointer(address, v, [100])
    v = 7
    call orc_route(s, 'notes', path, status)
    call check(status == ORC_OK, 'route without')
    open (newunit=unit, file=path, action='write', status='new')
    write (unit, '(a)') 'notes'
    close (unit)
    call orc_find(s, step, status)
    call check(status == ORC_NOT_FOUND .and. step == 0, 'find without')
    do step = 1, 5
      call orc_due(s, step, due, status)
      call check(status == ORC_OK .and. .not. due .and. .not. orc_should_stop(s), 'due without')
      call orc_checkpoint(s, step, status)
      call check(status == ORC_OK, 'checkpoint without')
    end do
    call orc_wait(s, 5_int64, ORC_GLOBAL, 0.0_real64, status)
    call check(status == ORC_OK .and. index(orc_message(), 'is safe') > 0, 'wait without')
    call orc_safe_step(s, ORC_GLOBAL, step, status)
    call check(status == ORC_NOT_FOUND, 'safe step without')
    call orc_stats_read(s, stats, status)
    call check(stats%disabled == 1, 'stats without')
    call orc_free(s, address, status)
    call orc_close(s, 1.0_real64, status)
    call check(status == ORC_OK, 'close without')
    inquire (file=path, exist=there)
    call check(.not. there, 'the routed file goes')
  end subroutine

end program
