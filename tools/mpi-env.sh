# Sourced by scripts that start MPI programs: settings for small machines and containers.
# They concern the tests and the demo only; a real job keeps its site's settings.

# More ranks than cores, and no binding: the ranks of a test share whatever there is.
export OMPI_MCA_rmaps_base_oversubscribe=1 OMPI_MCA_hwloc_base_binding_policy=none
export PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe PRTE_MCA_hwloc_default_binding_policy=none
# Give the core away while waiting, or ranks that wait starve those that compute.
export OMPI_MCA_mpi_yield_when_idle=1
# Containers often forbid the kernel call behind single-copy transfers; it is only a speed-up.
export OMPI_MCA_btl_vader_single_copy_mechanism=none
# One machine: no probing of networks that are not there.
export OMPI_MCA_btl=self,vader OMPI_MCA_pml=ob1
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
if [ "$(id -u)" -eq 0 ]; then
    # Open MPI refuses to run as root unless told twice.
    export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
fi
