! A forked child of a Fortran program with an open session: its calls give ORC_INVALID, one without ierr ends the child
! alone, and the parent continues. One rank, no MPI.
!
! Breaks if: registry.rs looks at a slot without asking whose it is.
program forked
  use orcheck
  use, intrinsic :: iso_c_binding
  use, intrinsic :: iso_fortran_env, only: error_unit, real64
  implicit none

  interface
    function c_fork() bind(c, name='fork')
      import
      integer(c_int) :: c_fork
    end function
    function c_waitpid(pid, status, flags) bind(c, name='waitpid')
      import
      integer(c_int), value :: pid, flags
      integer(c_int), intent(out) :: status
      integer(c_int) :: c_waitpid
    end function
    subroutine c_exit(code) bind(c, name='_exit')
      import
      integer(c_int), value :: code
    end subroutine
    function c_alarm(seconds) bind(c, name='alarm')
      import
      integer(c_int), value :: seconds
      integer(c_int) :: c_alarm
    end function
  end interface

  type(orc_session_t) :: s
  real(real64), target :: u(10, 10)
  character(len=4096) :: options
  integer :: step
  integer(c_int) :: pid, status, before

  call get_environment_variable('ORC_TEST_OPTIONS', options)
  call orc_open(s, 'forked', trim(options))
  call orc_protect(s, 'u', u)
  do step = 1, 3
    u = step
    flush (6)
    pid = c_fork()
    if (pid == 0) then
      before = c_alarm(20)
      if (step < 3) call child()
      call orc_checkpoint(s, step)               ! ends the child, with a message
      call c_exit(0)
    end if
    call orc_checkpoint(s, step)
    call orc_wait(s, step, ORC_GLOBAL, 30.0_real64)
    if (c_waitpid(pid, status, 0_c_int) /= pid) error stop 'waitpid'
    if (status /= merge(0, 256, step < 3)) error stop 'the status of the child'
  end do
  call orc_close(s, 30.0_real64)
  print '(a)', 'forked: ok'

contains

  subroutine refused(ierr, call_name)
    integer, intent(in) :: ierr
    character(len=*), intent(in) :: call_name
    if (ierr == ORC_INVALID .and. index(orc_message(), 'forked') > 0) return
    write (error_unit, '(4a)') 'not refused in a child: ', call_name, ': ', orc_message()
    call c_exit(1)
  end subroutine

  subroutine child()
    integer :: ierr, found
    logical :: due
    integer :: i
    call orc_due(s, 9, due, ierr)
    call refused(ierr, 'due')
    call orc_checkpoint(s, 9, ierr)
    call refused(ierr, 'checkpoint')
    call orc_protect(s, 'v', u, ierr)
    call refused(ierr, 'protect')
    call orc_find(s, found, ierr)
    call refused(ierr, 'find')
    call orc_safe_step(s, ORC_GLOBAL, found, ierr)
    call refused(ierr, 'safe_step')
    do i = 1, 2
      call orc_reject(s, 1, ierr)
      call refused(ierr, 'reject')
    end do
    call orc_close(s, 1.0_real64, ierr)
    call refused(ierr, 'close')
    call orc_abandon(s)
    call c_exit(0)
  end subroutine

end program
