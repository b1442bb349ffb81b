! The smallest Fortran program: one rank, one array, one checkpoint.
program solo
  use orcheck
  use, intrinsic :: iso_fortran_env, only: int64, real64
  implicit none
  type(orc_session_t) :: s
  real(real64), target :: u(100)
  integer(int64) :: step
  integer :: ierr
  character(len=4096) :: options
  call get_environment_variable('ORC_TEST_OPTIONS', options)
  call orc_open(s, 'solo', options, ierr)
  if (ierr /= ORC_OK) error stop 'open'
  u = 0
  call orc_protect(s, 'u', u, ierr)
  if (ierr /= ORC_OK) error stop 'protect'
  call orc_find(s, step, ierr)
  if (ierr == ORC_OK) then
    call orc_restart(s, step, ierr)
    if (ierr /= ORC_OK .or. any(u /= real(step, real64))) error stop 'restart'
  else if (ierr /= ORC_NOT_FOUND) then
    error stop 'find'
  end if
  u = u + 1
  call orc_checkpoint(s, step + 1, ierr)
  if (ierr /= ORC_OK) error stop 'checkpoint'
  call orc_close(s, 30.0_real64, ierr)
  if (ierr /= ORC_OK) error stop 'close'
  print '(a, i0)', 'solo: ok, step ', step + 1
end program
