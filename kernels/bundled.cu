// The module that the server carries: all bundled kernels in one, compiled to bundled.ptx.
#include "batchstring.cu"
#include "busy.cu"
