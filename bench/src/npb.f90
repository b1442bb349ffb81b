! Checkpoints for programs of the NAS Parallel Benchmarks, which orcbench/npb.py makes call this.
!
!   call npb_open('lu', comm)        ! once the state is initialised
!   call npb_protect('u', u)         ! each array of it
!   call npb_resume()                ! restarts; npb_first is the first step of the loop
!   do step = npb_first, niter
!      call npb_step(step - 1)       ! a checkpoint of what the last step made, where one is due
!   ...
!   call npb_close()                 ! before MPI_Finalize
module npb_checkpoints
  use orcheck
  use, intrinsic :: iso_fortran_env, only: int64
  implicit none
  private
  public :: npb_open, npb_protect, npb_resume, npb_step, npb_close
  integer, public :: npb_first = 1
  type(orc_session_t), save :: session
  logical, save :: is_open = .false.
contains
  subroutine npb_open(name, comm)
    character(len=*), intent(in) :: name
    integer, intent(in) :: comm
    call orc_mpi_open(session, comm, name, '')
    is_open = .true.
  end subroutine

  subroutine npb_protect(name, u)
    character(len=*), intent(in) :: name
    type(*), dimension(..), target, intent(inout) :: u
    call orc_protect(session, name, u)
  end subroutine

  subroutine npb_resume()
    integer(int64) :: step
    call orc_find(session, step)
    if (step > 0) call orc_restart(session, step)
    npb_first = int(step) + 1
  end subroutine

  subroutine npb_step(done)
    integer, intent(in) :: done
    logical :: due
    if (.not. is_open .or. done < npb_first) return
    call orc_due(session, int(done, int64), due)
    if (due) call orc_checkpoint(session, int(done, int64))
  end subroutine

  subroutine npb_close()
    if (is_open) call orc_close(session, 600d0)
    is_open = .false.
  end subroutine
end module
