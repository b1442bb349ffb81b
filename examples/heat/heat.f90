! Heat spreads in a square plate: du/dt = u_xx + u_yy on the unit square, cold at its edge, in
! Fortran 2018 under MPI, checkpointed with Orcheck. Without a directory for them it runs without checkpoints.
!
!     mpirun -n 2 heat n=511 steps=4000 every=500 job=plate options='global = ["/scratch/me"]'
!
! n*n inner points lie h = 1/(n+1) apart; a step adds r = dt/h**2 times the difference between a
! point's four neighbours and itself (forward in time, centred in space; stable up to r = 1/4). The
! plate starts as a sum of two sine waves, whose decay is known exactly: at the end the program
! compares itself with it. It also prints a hash of all bits of the field, so that a run that was
! killed and resumed can be compared with one that was not.
!
! Each rank owns a block u(nx, ny). Only u (and the step, which Orcheck keeps anyway) is needed to go
! on, so only u is protected; and because Orcheck is told which part of the whole plate it is, the
! checkpoint does not depend on how the plate was cut. w is u with a rim of one point around it.
program heat
  use, intrinsic :: iso_fortran_env, only: int64, real64, output_unit, error_unit
  use, intrinsic :: iso_c_binding, only: c_int
  use mpi
  use orcheck
  implicit none

  interface
    function c_raise(signal) bind(C, name='raise') result(failed)   ! of the C library
      import :: c_int
      integer(c_int), value :: signal
      integer(c_int) :: failed
    end function
  end interface

  real(real64), parameter :: pi = acos(-1.0_real64), r = 0.2_real64
  ! Waves along x and y, and their heights at the start.
  integer, parameter :: waves(2, 2) = reshape([1, 1, 3, 2], [2, 2])
  real(real64), parameter :: heights(2) = [1.0_real64, 0.5_real64]

  character(len=4096) :: job = 'heat', options = ''
  integer :: n = 255
  integer(int64) :: steps = 2000, every = 200, die = -1

  integer :: plate, rank, ranks, dims(2), me(2), west, east, south, north, ierr
  integer :: i0, j0, nx, ny                      ! points before our block; points of our block
  real(real64), allocatable, target :: u(:, :)   ! target: Orcheck reads it in later calls
  real(real64), allocatable :: w(:, :)
  real(real64) :: h, began_s, loop_s, error
  integer(int64) :: step
  type(orc_session_t) :: s
  logical :: due

  call MPI_Init(ierr)
  call read_arguments()
  call cut_plate()
  allocate (u(nx, ny), w(0:nx+1, 0:ny+1))
  h = 1.0_real64 / (n + 1)

  ! Where to begin: at the newest checkpoint, or with the waves.
  step = 0
  call exact(0.0_real64, u)
  call open_and_resume()

  began_s = MPI_Wtime()
  do while (step < steps)
    call advance()
    step = step + 1
    call orc_due(s, step, due)
    if (due) then
      call orc_checkpoint(s, step)               ! returns after the time of one copy of u
      if (step == die .and. rank == ranks - 1) ierr = c_raise(9_c_int)
    end if
    if (orc_should_stop(s)) exit                 ! the job's time is over, or someone asked
  end do
  loop_s = MPI_Wtime() - began_s

  call orc_close(s, 300.0_real64)                ! waits until the last checkpoint is safe
  call report()
  call MPI_Finalize(ierr)
  if (error > 10 * h**2) error stop 'heat: the result is wrong'

contains

  ! Calls to Orcheck without ierr end the program at an error, and say why.
  subroutine open_and_resume()
    character(len=64) :: defaults
    write (defaults, '(2a, i0)') 'enabled = "auto"', new_line('a') // 'every_steps = ', every
    call orc_mpi_open(s, plate, trim(job), trim(defaults) // new_line('a') // trim(options))
    ! u stays where it is, so one call is enough: u(1, 1) is point (i0+1, j0+1) of n * n.
    call orc_protect_array(s, 'u', u, global=[n, n], offset=[i0, j0])
    call orc_find(s, step)
    if (step == 0) return                        ! a fresh start
    call orc_restart(s, step)                    ! fills u, step is the one really restored
    if (rank == 0) then
      if (orc_message() /= '') write (output_unit, '(a)') trim(orc_message())
      write (output_unit, '(a, i0)') 'resumed from step ', step
      flush (output_unit)                        ! seen even if the run is killed again
    end if
    die = -1                                     ! one rehearsal of a death is enough
  end subroutine

  ! One time step: u, with the neighbours' edges around it, into u.
  subroutine advance()
    integer :: i, j
    w(1:nx, 1:ny) = u
    call exchange_rim()
    do concurrent (j = 1:ny, i = 1:nx)
      u(i, j) = w(i, j) + r * ((w(i-1, j) + w(i+1, j)) + (w(i, j-1) + w(i, j+1)) - 4 * w(i, j))
    end do
  end subroutine

  ! Sends our four edges to the neighbours and receives theirs; outside of the plate it is cold (a
  ! neighbour MPI_PROC_NULL leaves the buffer as it is).
  subroutine exchange_rim()
    real(real64) :: column(ny)
    integer :: status(MPI_STATUS_SIZE)
    column = 0
    call MPI_Sendrecv(u(1, :), ny, MPI_DOUBLE_PRECISION, west, 1, &
                      column, ny, MPI_DOUBLE_PRECISION, east, 1, plate, status, ierr)
    w(nx+1, 1:ny) = column
    column = 0
    call MPI_Sendrecv(u(nx, :), ny, MPI_DOUBLE_PRECISION, east, 2, &
                      column, ny, MPI_DOUBLE_PRECISION, west, 2, plate, status, ierr)
    w(0, 1:ny) = column
    w(1:nx, ny+1) = 0
    call MPI_Sendrecv(u(:, 1), nx, MPI_DOUBLE_PRECISION, south, 3, &
                      w(1, ny+1), nx, MPI_DOUBLE_PRECISION, north, 3, plate, status, ierr)
    w(1:nx, 0) = 0
    call MPI_Sendrecv(u(:, ny), nx, MPI_DOUBLE_PRECISION, north, 4, &
                      w(1, 0), nx, MPI_DOUBLE_PRECISION, south, 4, plate, status, ierr)
  end subroutine

  ! The solution at time t at our points.
  subroutine exact(t, field)
    real(real64), intent(in) :: t
    real(real64), intent(out) :: field(:, :)
    real(real64) :: height, along_x(nx), along_y(ny)
    integer :: j, k
    field = 0
    do k = 1, size(heights)
      height = heights(k) * exp(-pi**2 * sum(waves(:, k)**2) * t)
      along_x = wave(waves(1, k), i0, nx)
      along_y = wave(waves(2, k), j0, ny)
      do j = 1, ny
        field(:, j) = field(:, j) + height * along_x * along_y(j)
      end do
    end do
  end subroutine

  ! sin(number * pi * x) at count points after the first ones. A vectorised sine may differ from a
  ! plain one in the last bit, and where it is used would depend on the cut: hence not here.
  function wave(number, first, count) result(values)
    integer, intent(in) :: number, first, count
    real(real64) :: values(count)
    integer :: i
    !GCC$ novector
    do i = 1, count
      values(i) = sin(number * pi * (first + i) * h)
    end do
  end function

  ! A hash of all bits of u that does not depend on the cut: the sum of a hash (FNV-1a of 32 bits,
  ! in 64, so that nothing overflows) of every point's number and value. Rank 0 gets it.
  function hash_field() result(all)
    integer(int64) :: all, mine, point, words(2)
    integer :: i, j, k, byte
    mine = 0
    all = 0
    do j = 1, ny
      do i = 1, nx
        words = [int(j0 + j - 1, int64) * n + i0 + i, transfer(u(i, j), 0_int64)]
        point = int(z'811c9dc5', int64)
        do k = 1, 2
          do byte = 0, 7
            point = ieor(point, ibits(words(k), 8 * byte, 8))
            point = iand(point * 16777619_int64, int(z'ffffffff', int64))
          end do
        end do
        mine = mine + point
      end do
    end do
    call MPI_Reduce(mine, all, 1, MPI_INTEGER8, MPI_SUM, 0, plate, ierr)
  end function

  subroutine report()
    real(real64) :: mine
    integer(int64) :: hash
    w = 0
    call exact(step * r * h**2, w(1:nx, 1:ny))
    mine = maxval(abs(u - w(1:nx, 1:ny)))
    call MPI_Allreduce(mine, error, 1, MPI_DOUBLE_PRECISION, MPI_MAX, plate, ierr)
    hash = hash_field()
    if (rank == 0) write (output_unit, '(a, i0, a, f0.2, a, es9.2, a, es9.2, a, z16.16)') &
      'step ', step, '  ', loop_s, ' s  max error ', error, ' (bound ', 10 * h**2, ')  state ', hash
  end subroutine

  ! A block of the plate for every rank, and its neighbours.
  subroutine cut_plate()
    call MPI_Comm_size(MPI_COMM_WORLD, ranks, ierr)
    dims = 0
    call MPI_Dims_create(ranks, 2, dims, ierr)
    call MPI_Cart_create(MPI_COMM_WORLD, 2, dims, [.false., .false.], .false., plate, ierr)
    call MPI_Comm_rank(plate, rank, ierr)
    call MPI_Cart_coords(plate, rank, 2, me, ierr)
    call MPI_Cart_shift(plate, 0, 1, west, east, ierr)
    call MPI_Cart_shift(plate, 1, 1, south, north, ierr)
    i0 = n * me(1) / dims(1)
    nx = n * (me(1) + 1) / dims(1) - i0
    j0 = n * me(2) / dims(2)
    ny = n * (me(2) + 1) / dims(2) - j0
    if (minval([n, n] / dims) < 1) call usage('more ranks than points')
  end subroutine

  subroutine read_arguments()
    character(len=4096) :: argument
    integer :: i, equals, bad
    do i = 1, command_argument_count()
      call get_command_argument(i, argument)
      equals = index(argument, '=')
      bad = 0
      select case (argument(:max(equals, 1)))
      case ('n=');       read (argument(equals+1:), *, iostat=bad) n
      case ('steps=');   read (argument(equals+1:), *, iostat=bad) steps
      case ('every=');   read (argument(equals+1:), *, iostat=bad) every
      case ('die=');     read (argument(equals+1:), *, iostat=bad) die
      case ('job=');     job = argument(equals+1:)
      case ('options='); options = argument(equals+1:)
      case default;      bad = 1
      end select
      if (bad /= 0) call usage('cannot understand ' // trim(argument))
    end do
    if (n < 1 .or. n > 40000 .or. every < 1) call usage('a value out of range')
  end subroutine

  subroutine usage(problem)
    character(len=*), intent(in) :: problem
    write (error_unit, '(3a)') 'heat: ', problem, &
      new_line('a') // 'usage: heat [n=POINTS] [steps=N] [job=NAME] [every=N] [options=TOML] [die=STEP]' // &
      new_line('a') // 'die: rehearsal; the last rank kills itself while that checkpoint is flushed'
    call MPI_Abort(MPI_COMM_WORLD, 2, ierr)
  end subroutine
end program
