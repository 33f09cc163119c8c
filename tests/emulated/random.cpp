// cuRAND and NVRTC, as far as they are called when a device is opened (nothing here is random, and nothing is compiled), and versions.
#include "device.h"

using namespace emulated;

namespace {

int not_here(const char* what) {
    complain("%s is not emulated", what);
    return 999;
}

} // namespace

API int curandCreateGenerator(void** generator, int) {
    *generator = new int(0);
    return current_device() ? 0 : 203;
}
API int curandDestroyGenerator(void* generator) {
    delete (int*)generator;
    return 0;
}
API int curandSetStream(void*, void* stream) {
    return device_of_stream(stream) ? 0 : 104;
}
API int curandSetPseudoRandomGeneratorSeed(void*, unsigned long long) {
    return 0;
}
API int curandSetGeneratorOffset(void*, unsigned long long) {
    return 0;
}
API int curandGenerateUniform(void*, float*, size_t) {
    return not_here("curandGenerateUniform");
}
API int curandGenerateUniformDouble(void*, double*, size_t) {
    return not_here("curandGenerateUniformDouble");
}
API int curandGenerateNormal(void*, float*, size_t, float, float) {
    return not_here("curandGenerateNormal");
}
API int curandGenerateNormalDouble(void*, double*, size_t, double, double) {
    return not_here("curandGenerateNormalDouble");
}
API int curandGetVersion(int* version) {
    *version = 10400;
    return 0;
}
API int nvrtcVersion(int* major, int* minor) {
    *major = 13;
    *minor = 0;
    return 0;
}

// Versions, by parts: major, minor, patch.
API int cublasGetProperty(int part, int* value) {
    *value = part == 0 ? 13 : 0;
    return 0;
}
API int cublasLtGetProperty(int part, int* value) {
    return cublasGetProperty(part, value);
}
API int curandGetProperty(int part, int* value) {
    *value = part == 0 ? 10 : part == 1 ? 4 : 0;
    return 0;
}
