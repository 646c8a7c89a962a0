"""Communication between server and clients: in one process, over MPI, or between silos."""
