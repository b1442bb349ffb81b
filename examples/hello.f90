! The smallest Fortran program with checkpoints: it counts, can be killed, and counts on when it is
! started again. docs/fortran.md says how to compile it; then: ORCHECK_GLOBAL=/scratch/me ./hello
program hello
  use orcheck
  use, intrinsic :: iso_fortran_env, only: int64, real64
  implicit none
  type(orc_session_t) :: s
  real(real64), target :: total = 0
  integer(int64) :: step = 0
  logical :: due

  call orc_open(s, 'hello', 'every_steps = 1000')   ! without ierr, an error ends the program
  call orc_protect(s, 'total', total)
  call orc_find(s, step)                            ! 0: nothing to restart from
  if (step > 0) call orc_restart(s, step)
  print '(a, i0)', 'from step ', step
  do while (step < 10000)
    if (orc_should_stop(s)) exit
    step = step + 1
    total = total + 1.0_real64 / step
    call orc_due(s, step, due)
    if (due) call orc_checkpoint(s, step)
  end do
  call orc_close(s, 60.0_real64)
  print '(a, i0, a, f0.12)', 'sum of 1/n up to ', step, ': ', total
end program
