#include "tests/serve/test_certificate.h"

#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <memory>

#include "base/error.h"
#include "base/text.h"

namespace bev::test {

namespace {
template <class T, void (*kFree)(T*)>
struct Freer {
  void operator()(T* pointer) const { kFree(pointer); }
};
using Key = std::unique_ptr<EVP_PKEY, Freer<EVP_PKEY, EVP_PKEY_free>>;
using Certificate = std::unique_ptr<X509, Freer<X509, X509_free>>;
using Extension = std::unique_ptr<X509_EXTENSION, Freer<X509_EXTENSION, X509_EXTENSION_free>>;
struct FileCloser {
  void operator()(std::FILE* file) const { std::fclose(file); }
};
using File = std::unique_ptr<std::FILE, FileCloser>;

void add_extension(X509& certificate, int kind, const char* value) {
  X509V3_CTX context;
  X509V3_set_ctx(&context, &certificate, &certificate, nullptr, nullptr, 0);
  Extension extension(X509V3_EXT_conf_nid(nullptr, &context, kind, value));
  X509_add_ext(&certificate, extension.get(), -1);
}
}  // namespace

CertificateFiles::~CertificateFiles() {
  std::error_code ignored;
  for (const std::string& file : {certificate, key}) std::filesystem::remove(file, ignored);
}

CertificateFiles make_certificate(const std::string& name) {
  constexpr long kDaySeconds = 86'400;
  Key key(EVP_EC_gen("P-256"));
  Certificate certificate(X509_new());
  X509_set_version(certificate.get(), 2);
  ASN1_INTEGER_set(X509_get_serialNumber(certificate.get()), 1);
  X509_gmtime_adj(X509_getm_notBefore(certificate.get()), -kDaySeconds);
  X509_gmtime_adj(X509_getm_notAfter(certificate.get()), kDaySeconds);
  X509_set_pubkey(certificate.get(), key.get());
  X509_NAME* subject = X509_get_subject_name(certificate.get());
  const auto* host = reinterpret_cast<const unsigned char*>("localhost");
  X509_NAME_add_entry_by_txt(subject, "CN", MBSTRING_ASC, host, -1, -1, 0);
  X509_set_issuer_name(certificate.get(), subject);
  add_extension(*certificate, NID_basic_constraints, "critical,CA:TRUE");
  add_extension(*certificate, NID_subject_alt_name, "DNS:localhost,IP:127.0.0.1");
  BEV_CHECK(X509_sign(certificate.get(), key.get(), EVP_sha256()) > 0, ErrorKind::kInternal,
            "test: no certificate");

  std::string base =
      (std::filesystem::temp_directory_path() / concat("bev_", name, "_", ::getpid())).string();
  File out(std::fopen((base + ".crt").c_str(), "w"));
  PEM_write_X509(out.get(), certificate.get());
  out.reset(std::fopen((base + ".key").c_str(), "w"));
  PEM_write_PrivateKey(out.get(), key.get(), nullptr, nullptr, 0, nullptr, nullptr);
  return CertificateFiles(base);
}

}  // namespace bev::test
