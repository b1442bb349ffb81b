! Two ranks, one of which makes a mistake without asking for ierr: the whole program ends, and says why.
!
! Breaks if: orc_fortran_abort does not end the other ranks (it waits in MPI_Barrier), or conclude() continues.
program ends
  use mpi
  use orcheck
  implicit none
  type(orc_session_t) :: s
  integer :: rank, ierr
  character(len=4096) :: options
  call MPI_Init(ierr)
  call MPI_Comm_rank(MPI_COMM_WORLD, rank, ierr)
  call get_environment_variable('ORC_TEST_OPTIONS', options)
  call orc_mpi_open(s, MPI_COMM_WORLD, 'ends', trim(options))
  if (rank == 1) call orc_unprotect(s, 'nothing')
  call MPI_Barrier(MPI_COMM_WORLD, ierr)
  print '(a)', 'after the error'
end program
