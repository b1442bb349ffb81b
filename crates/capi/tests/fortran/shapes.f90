! Arrays of every rank, stored with their shape; steps as default integers; calls without ierr. One rank, no MPI.
! `shapes save` takes the checkpoints, `shapes restore` reads them in a new process, `shapes wrong` ends at an error that
! nobody asked for: it must not come to its last line.
!
! Breaks if: orcheck_fortran.c passes shapes in Fortran's order, or flat; narrow() wraps; conclude() continues.
program shapes
  use orcheck
  use, intrinsic :: iso_fortran_env, only: int8, int32, int64, real32, real64, error_unit
  implicit none

  type particle
    real(real64) :: x
    integer(int32) :: id
  end type

  character(len=4096) :: options
  character(len=16) :: what
  real(real64), target :: r0, r1(3), r2(3, 4), r3(2, 3, 4), flat2(3, 4)
  real(real32), target :: r4(2, 1, 3, 2)
  complex(real32), target :: r5(1, 2, 1, 2, 3)
  integer(int8), target :: r6(2, 2, 1, 1, 1, 3)
  integer(int64), target :: r7(1, 2, 1, 2, 1, 2, 2)
  integer, target :: r8(2, 1, 2, 1, 2, 1, 2, 3)
  integer, target :: r9(2, 1, 2, 1, 2, 1, 2, 1, 3)
  integer, target :: r15(2, 1, 2, 1, 2, 1, 2, 1, 3, 1, 1, 1, 1, 1, 2)
  logical, target :: switches(2, 3)
  character(len=5), target :: names(2, 2)
  type(particle), target :: particles(2, 2)
  real(real64), allocatable, target :: empty(:, :)
  real(real64), target :: cyclic(6, 8)
  logical :: by_rows = .false.
  type(orc_session_t) :: s

  call get_environment_variable('ORC_TEST_OPTIONS', options)
  call get_command_argument(1, what)
  select case (what)
  case ('save');    call save()
  case ('restore'); call restore()
  case ('wrong');   call wrong()
  case default;     error stop 'save, restore or wrong'
  end select
  print '(2a)', 'shapes: ok, ', trim(what)

contains

  subroutine check(ok, text)
    logical, intent(in) :: ok
    character(len=*), intent(in) :: text
    if (ok) return
    write (error_unit, '(4a)') 'not true: ', text, ' : ', orc_message()
    error stop 1
  end subroutine

  subroutine fill(step)
    integer, intent(in) :: step
    integer :: i
    r0 = step
    r1 = [(step * 100 + i, i=1, 3)]
    r2 = reshape([(step * 100 + i, i=1, 12)], shape(r2))
    flat2 = r2 + 0.5_real64
    r3 = reshape([(step * 100 + i, i=1, 24)], shape(r3))
    r4 = reshape([(step * 100 + i, i=1, 12)], shape(r4))
    cyclic = reshape([(step * 100 + i, i=1, 48)], shape(cyclic))
    r5 = reshape([(cmplx(step, i, real32), i=1, 12)], shape(r5))
    r6 = reshape([(int(step + i, int8), i=1, 12)], shape(r6))
    r7 = reshape([(step * 100_int64 + i, i=1, 16)], shape(r7))
    r8 = reshape([(step * 100 + i, i=1, 48)], shape(r8))
    r9 = reshape([(step * 100 + i, i=1, 48)], shape(r9))
    r15 = reshape([(step * 100 + i, i=1, 96)], shape(r15))
    switches = reshape([(mod(i + step, 2) == 0, i=1, 6)], shape(switches))
    names = reshape([character(len=5) :: 'one', 'two', 'three', 'four'], shape(names))
    particles = reshape([(particle(step + i, i), i=1, 4)], shape(particles))
  end subroutine

  subroutine protect()
    call orc_protect(s, 'r0', r0)
    call orc_protect(s, 'r1', r1)
    call orc_protect(s, 'r2', r2)
    call orc_protect(s, 'r3', r3, flags=ORC_SAME)
    call orc_protect(s, 'r4', r4)
    call orc_protect(s, 'r5', r5)
    call orc_protect(s, 'r6', r6)
    call orc_protect(s, 'r7', r7)
    call orc_protect(s, 'r8', r8)
    call orc_protect(s, 'r9', r9)
    call orc_protect(s, 'r15', r15)
    call orc_protect(s, 'switches', switches)
    call orc_protect(s, 'names', names)
    call orc_protect(s, 'particles', particles)
    call orc_protect(s, 'empty', empty)
    call orc_protect_list(s, 'items', r3(:, :, :3))
    call protect_cyclic()
  end subroutine

  ! A block-cyclic array; one rank has all its blocks: two columns each, or three rows.
  subroutine protect_cyclic()
    type(orc_boxes_t) :: boxes
    integer :: i
    if (by_rows) then
      do i = 3, 0, -3
        call orc_add_box(boxes, cyclic(i + 1:i + 3, :), global=shape(cyclic), offset=[i, 0])
      end do
    else
      do i = 0, 6, 2
        call orc_add_box(boxes, cyclic(:, i + 1:i + 2), global=shape(cyclic), offset=[0, i])
      end do
    end if
    call orc_protect_boxes(s, 'cyclic', boxes)
  end subroutine

  ! As version 0.1.0 did with an array of any rank.
  subroutine protect_flat(name, u, n)
    character(len=*), intent(in) :: name
    integer, intent(in) :: n
    real(real64), target, intent(inout) :: u(n)
    call orc_protect(s, name, u)
  end subroutine

  subroutine save()
    integer :: step, status
    logical :: due
    type(orc_boxes_t) :: boxes
    allocate (empty(0, 7))
    call orc_open(s, 'shapes', trim(options) // new_line('a') // 'every_steps = 2')
    call orc_protect(s, 'r2', r2(:, 1:4:2), status)
    call check(status == ORC_INVALID .and. index(orc_message(), 'not contiguous') > 0, 'a section with gaps')
    call orc_protect(s, 'r8', r8(:, :, :, :, :, :, 1, :), status)
    call check(status == ORC_INVALID .and. index(orc_message(), 'not contiguous') > 0, 'gaps within')
    call orc_protect_list(s, 'items', r2(:, 1:4:2), status)
    call check(status == ORC_INVALID .and. index(orc_message(), 'not contiguous') > 0, 'a list with gaps')
    call orc_protect_list(s, 'items', r0, status)
    call check(status == ORC_INVALID .and. index(orc_message(), '1 to 8 dimensions') > 0, 'a list of no dimension')
    call orc_protect_boxes(s, 'cyclic', boxes, status)
    call check(status == ORC_INVALID .and. index(orc_message(), 'orc_add_box for each') > 0, 'no box')
    call orc_add_box(boxes, cyclic(:, 8:1:-1), shape(cyclic), [0, 0], status)
    call check(status == ORC_INVALID .and. index(orc_message(), 'runs backwards') > 0, 'a box backwards')
    call orc_add_box(boxes, cyclic, [48], [0], status)
    call check(status == ORC_INVALID .and. index(orc_message(), 'each dimension') > 0, 'a box of another rank')
    call orc_find(s, step)
    call check(step == 0, 'nothing is found')
    call protect()
    call protect_flat('flat2', flat2, size(flat2))
    do step = 1, 4
      call fill(step)
      call orc_due(s, step, due)
      call check(due .eqv. mod(step, 2) == 0, 'due')
      if (due) call orc_checkpoint(s, step)
    end do
    call orc_wait(s, 4, ORC_GLOBAL, 30.0_real64)
    call orc_safe_step(s, ORC_GLOBAL, step)
    call check(step == 4, 'safe step')
    call orc_close(s, 30.0_real64)
    ! A step that no default integer holds.
    call orc_open(s, 'large', trim(options))
    call orc_protect(s, 'r1', r1)
    call orc_checkpoint(s, 3000000000_int64)
    call orc_close(s, 30.0_real64)
  end subroutine

  subroutine stored(name, expected)
    character(len=*), intent(in) :: name
    integer, intent(in) :: expected(:)
    integer(int64), allocatable :: local(:), global(:), offset(:)
    call orc_stored(s, name, local=local, global=global, offset=offset)
    call check(size(local) == size(expected), 'rank of ' // name)
    call check(all(local == expected), 'shape of ' // name)
    call check(all(global == expected) .and. all(offset == 0), 'an array alone: ' // name)
  end subroutine

  subroutine restore()
    integer :: step, status
    integer(int64) :: wide
    real(real64) :: w2(3, 4)
    allocate (empty(0, 7))
    call orc_open(s, 'shapes', trim(options))
    call orc_find(s, step, status)
    call check(status == ORC_OK .and. step == 4, 'find')
    call orc_find_step(s, ORC_OLDER_THAN, 4, step)
    call check(step == 2, 'an older step')
    call orc_find_step(s, ORC_OLDER_THAN, 2, wide)
    call check(wide == 0, 'no older step, and no error')
    call orc_find_step(s, ORC_EXACTLY, 4_int64, wide)
    call check(wide == 4, 'that step')
    call stored('r1', shape(r1))
    call stored('r2', shape(r2))
    call stored('r3', shape(r3))
    call stored('r4', shape(r4))
    call stored('r5', shape(r5))
    call stored('r6', shape(r6))
    call stored('r7', shape(r7))
    call stored('r8', shape(r8))
    call stored('r9', [size(r9)])
    call stored('r15', [size(r15)])
    call stored('empty', [0, 7])
    call stored('items', [2, 3, 3])
    call stored('flat2', [12])
    by_rows = .true.
    cyclic = 0
    call protect()
    call orc_protect(s, 'flat2', flat2)
    call orc_restart_region(s, 'r2')
    w2 = r2
    call orc_restart(s, step)
    call check(step == 4 .and. all(w2 == r2), 'restart')
    call compare()
    call orc_reject(s, 2)
    call orc_find_step(s, ORC_OLDER_THAN, 4, step, status)
    call check(status == ORC_INVALID, 'too late')
    call orc_checkpoint(s, 5)
    call orc_close(s, 30.0_real64)

    ! A shape of the same size is another one.
    call orc_open(s, 'shapes', trim(options))
    call orc_find(s, step)
    call protect()
    call protect_flat('flat2', flat2, size(flat2))
    call orc_protect(s, 'r2', w2)
    call orc_restart(s, step)
    call orc_abandon(s)
    call orc_open(s, 'shapes', trim(options))
    call orc_find(s, step)
    call protect()
    call orc_protect(s, 'flat2', flat2)
    call transposed(w2)
    call orc_restart(s, step, status)
    call check(status == ORC_INVALID .and. index(orc_message(), 'the shape') > 0, 'another shape')
    call orc_abandon(s)

    call orc_open(s, 'large', trim(options))
    call orc_find(s, step, status)
    call check(status == ORC_INVALID .and. step == 0, 'a step too large')
    call check(index(orc_message(), 'orc_find: step 3000000000 does not fit') > 0, 'which step')
    call orc_find(s, wide, status)
    call check(status == ORC_OK .and. wide == 3000000000_int64, 'a large step')
    call orc_protect(s, 'r1', r1)
    call orc_restart(s, step, status)
    call check(status == ORC_INVALID .and. index(orc_message(), 'orc_restart: step 3000000000') > 0, 'restart to it')
    call orc_close(s, 30.0_real64)
  end subroutine

  subroutine transposed(u)
    real(real64), target, intent(inout) :: u(4, 3)
    call orc_protect(s, 'r2', u)
  end subroutine

  subroutine compare()
    real(real64) :: f2(3, 4)
    integer :: i
    f2 = reshape([(400 + i, i=1, 12)], shape(f2))
    call check(r0 == 4 .and. all(r1 == [401, 402, 403]) .and. all(r2 == f2) .and. all(flat2 == f2 + 0.5_real64), 'values')
    call check(r3(2, 1, 1) == 402 .and. r3(1, 2, 1) == 403 .and. r3(1, 1, 2) == 407, 'order of r3')
    call check(r4(2, 1, 3, 2) == 412 .and. r5(1, 2, 1, 2, 3) == (4.0_real32, 12.0_real32), 'r4, r5')
    call check(r6(2, 2, 1, 1, 1, 3) == 16 .and. r7(1, 2, 1, 2, 1, 2, 2) == 416, 'r6, r7')
    call check(all(cyclic == reshape([(400 + i, i=1, 48)], shape(cyclic))), 'cyclic')
    call check(r8(2, 1, 2, 1, 2, 1, 2, 3) == 448 .and. r9(2, 1, 2, 1, 2, 1, 2, 1, 3) == 448, 'r8, r9')
    call check(r15(2, 1, 2, 1, 2, 1, 2, 1, 3, 1, 1, 1, 1, 1, 2) == 496, 'r15')
    call check(.not. switches(1, 1) .and. switches(2, 1) .and. switches(2, 3), 'switches')
    call check(names(1, 2) == 'three' .and. names(2, 2) == 'four', 'names')
    call check(particles(2, 2)%x == 8 .and. particles(2, 2)%id == 4, 'particles')
  end subroutine

  subroutine wrong()
    integer :: step
    call orc_open(s, 'wrong', trim(options))
    call orc_protect(s, 'r1', r1)
    call orc_checkpoint(s, 5)
    print '(a)', 'before the error'
    do step = 5, 6
      call orc_checkpoint(s, step)
      print '(a)', 'after the error'
    end do
  end subroutine

end program
