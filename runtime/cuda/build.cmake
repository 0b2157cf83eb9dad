# The GPU backend as a shared object: CUDA runtime and cuBLASLt. It must not be linked with libcuda,
# which is there only where a driver is; NCCL, where its header is found, is loaded when it is asked
# for. What it needs of the rest of the runtime is compiled once more, for it is loaded and not
# linked.
if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
  set(CMAKE_CUDA_ARCHITECTURES 80-real 90-real 100)
endif()
enable_language(CUDA)
# CMake 3.25 does not know C++20 of nvcc 13.
if(NOT DEFINED CMAKE_CUDA20_STANDARD_COMPILE_OPTION)
  set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
  set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION -std=c++20)
endif()
find_package(CUDAToolkit REQUIRED)
if(PIPELAG_CCACHE)
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${PIPELAG_CCACHE})
endif()

file(GLOB_RECURSE kernel_sources CONFIGURE_DEPENDS runtime/cuda/*.cu)
file(GLOB_RECURSE cuda_sources CONFIGURE_DEPENDS runtime/cuda/*.cpp)
add_library(pipelag_kernels OBJECT ${kernel_sources})
add_library(pipelag_cuda MODULE ${cuda_sources} models/error.cpp models/network.cpp models/random.cpp
  runtime/correction/correction.cpp runtime/correction/pipemare.cpp
  runtime/correction/rate_damping.cpp runtime/correction/weight_prediction.cpp
  runtime/device/optimizers.cpp runtime/network/layout.cpp runtime/network/stage_tensors.cpp
  runtime/optimizer/optimizer.cpp)
set_target_properties(pipelag_kernels pipelag_cuda PROPERTIES CUDA_RUNTIME_LIBRARY Shared
  POSITION_INDEPENDENT_CODE ON)
# Warnings of the host's compiler are errors too, but for those that nvcc's own code gives rise to.
target_compile_options(pipelag_kernels PRIVATE
  "$<$<COMPILE_LANGUAGE:CUDA>:--Werror=all-warnings;-Xcompiler=-Wall,-Wextra,-Werror>")
target_link_libraries(pipelag_kernels PRIVATE pipelag_flags)
target_link_libraries(pipelag_cuda PRIVATE pipelag_kernels pipelag_flags
  fmt::fmt-header-only CUDA::cudart CUDA::cublasLt ${CMAKE_DL_LIBS})
# Whatever is missing shows when it is linked, not when it is loaded.
target_link_options(pipelag_cuda PRIVATE -Wl,--no-undefined)

find_path(NCCL_INCLUDE nccl.h HINTS ${CUDAToolkit_INCLUDE_DIRS})
if(NCCL_INCLUDE)
  target_compile_definitions(pipelag_cuda PRIVATE PIPELAG_NCCL)
  target_include_directories(pipelag_cuda SYSTEM PRIVATE ${NCCL_INCLUDE})
  # Where it lies on this machine, besides where libraries lie anyway.
  find_library(NCCL_LIBRARY nccl HINTS ${CUDAToolkit_LIBRARY_DIR})
  if(NCCL_LIBRARY)
    get_filename_component(nccl_folder ${NCCL_LIBRARY} DIRECTORY)
    set_target_properties(pipelag_cuda PROPERTIES BUILD_RPATH ${nccl_folder})
  endif()
  set(with_nccl "with NCCL")
else()
  list(FILTER cuda_sources INCLUDE REGEX "/nccl_library.cpp$")
  set_source_files_properties(${cuda_sources} PROPERTIES HEADER_FILE_ONLY ON)
  set(with_nccl "without NCCL")
endif()
message(STATUS "CUDA: compiled with nvcc ${CMAKE_CUDA_COMPILER_VERSION} for sm "
  "${CMAKE_CUDA_ARCHITECTURES}, ${with_nccl}")
