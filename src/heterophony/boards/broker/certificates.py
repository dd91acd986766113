"""Certificates: the broker's own authority, the certificates it signs and its revocation list."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Self

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from ...core.errors import ConfigError, FolderError, suggest_similar
from ...core.files import sync_folder, translate_disk_errors, write_atomically

CLOCK_TOLERANCE = timedelta(days=1)  # the clocks of small boards may be slow
AUTHORITY_LIFETIME = timedelta(days=20 * 365)  # the longest validity of what it signs

CLIENT_URI = "urn:heterophony:client:"  # prefix of the name of a client that the board may hold


@dataclass(frozen=True)
class CertificateAndKey:
    """A certificate and its private key, both PEM."""

    certificate: str
    key: str


class CertificateAuthority:
    """Signs certificates that only its own broker and boards trust."""

    def __init__(self, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> None:
        self.certificate, self.key = certificate, key
        self.valid_until = certificate.not_valid_after_utc

    @classmethod
    def create(cls) -> Self:
        """Create an authority with a new key and a certificate that it signs itself."""
        key, now = ec.generate_private_key(ec.SECP256R1()), datetime.now(UTC)
        name = make_x509_name("heterophony broker authority")
        builder = (
            make_certificate_builder(
                name, name, key.public_key(), now - CLOCK_TOLERANCE, now + AUTHORITY_LIFETIME
            )
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(make_key_usage(signs=True), critical=True)
        )
        return cls(builder.sign(key, hashes.SHA256()), key)

    @classmethod
    def load(cls, pair: CertificateAndKey) -> Self:
        """Load the authority's certificate and key; raise ValueError if they are damaged or not a pair."""
        certificate = x509.load_pem_x509_certificate(pair.certificate.encode())
        key = serialization.load_pem_private_key(pair.key.encode(), password=None)
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise ValueError("the key is not an elliptic curve key")
        if certificate.public_key() != key.public_key():
            raise ValueError("the key belongs to another certificate")
        return cls(certificate, key)

    def export_pem(self) -> CertificateAndKey:
        """Return the authority's certificate and key as PEM."""
        return CertificateAndKey(encode_certificate(self.certificate), encode_private_key(self.key))

    def issue_for_broker(self, hosts: Sequence[str]) -> CertificateAndKey:
        """Issue the broker's certificate, for the names and addresses at which it can be reached."""
        names = x509.SubjectAlternativeName([make_alternative_x509_name(name) for name in hosts])
        return self._issue("broker", self.valid_until, ExtendedKeyUsageOID.SERVER_AUTH, names)

    def issue_for_board(
        self, name: str, until: datetime, clients: Sequence[str] = ()
    ) -> CertificateAndKey:
        """Issue a certificate with which a board can authenticate, but not act as a broker.

        The certificate names the clients that the board may hold; without names, the board may hold any clients.
        """
        uris = [x509.UniformResourceIdentifier(CLIENT_URI + client) for client in clients]
        names = x509.SubjectAlternativeName(uris) if uris else None
        until = min(until, self.valid_until)
        return self._issue(name, until, ExtendedKeyUsageOID.CLIENT_AUTH, names)

    def _issue(
        self,
        name: str,
        until: datetime,
        use: x509.ObjectIdentifier,
        names: x509.SubjectAlternativeName | None = None,
    ) -> CertificateAndKey:
        """Issue a certificate with a new key, for this name and use."""
        key, issuer = ec.generate_private_key(ec.SECP256R1()), self.certificate.subject
        start = min(datetime.now(UTC), until) - CLOCK_TOLERANCE
        builder = (
            make_certificate_builder(make_x509_name(name), issuer, key.public_key(), start, until)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(make_key_usage(signs=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage([use]), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key()),
                critical=False,
            )
        )
        if names is not None:
            builder = builder.add_extension(names, critical=False)
        return CertificateAndKey(
            encode_certificate(builder.sign(self.key, hashes.SHA256())), encode_private_key(key)
        )

    def build_revocation_list(self, revoked: Sequence[str]) -> str:
        """Return the signed list of revoked certificates in PEM format.

        The list is valid as long as the authority, because with an expired list no board would be admitted.
        """
        now = datetime.now(UTC)
        builder = (
            x509.CertificateRevocationListBuilder()
            .issuer_name(self.certificate.subject)
            .last_update(now - CLOCK_TOLERANCE)
            .next_update(self.valid_until)
        )
        for certificate in revoked:
            number = x509.load_pem_x509_certificate(certificate.encode()).serial_number
            entry = x509.RevokedCertificateBuilder().serial_number(number).revocation_date(now)
            builder = builder.add_revoked_certificate(entry.build())
        signed = builder.sign(self.key, hashes.SHA256())
        return signed.public_bytes(serialization.Encoding.PEM).decode()


def read_certificate_expiry(certificate: str) -> datetime:
    """Return the date on which a board's certificate expires."""
    return x509.load_pem_x509_certificate(certificate.encode()).not_valid_after_utc


def read_certificate_clients(certificate: str) -> tuple[str, ...]:
    """Return the clients that a board's certificate names; an empty tuple if it allows any client."""
    extensions = x509.load_pem_x509_certificate(certificate.encode()).extensions
    try:
        names = extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return ()
    uris = names.get_values_for_type(x509.UniformResourceIdentifier)
    return tuple(u.removeprefix(CLIENT_URI) for u in uris if u.startswith(CLIENT_URI))


def read_serial_number(certificate: str) -> str:
    """Return the serial number of a board's certificate, which is unique within its authority."""
    return f"{x509.load_pem_x509_certificate(certificate.encode()).serial_number:x}"


def make_certificate_builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePublicKey,
    start: datetime,
    until: datetime,
) -> x509.CertificateBuilder:
    """Return a certificate builder with the fields that all of our certificates have."""
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(start)
        .not_valid_after(until)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def make_key_usage(signs: bool) -> x509.KeyUsage:
    """Return a certificate's key usage: signing certificates and revocation lists, or TLS handshakes only."""
    return x509.KeyUsage(
        digital_signature=not signs,
        key_cert_sign=signs,
        crl_sign=signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def make_x509_name(name: str) -> x509.Name:
    """Return a certificate's subject with this common name."""
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def make_alternative_x509_name(name: str) -> x509.GeneralName:
    """Return an IP address or host name as an alternative name in a certificate."""
    try:
        return x509.IPAddress(ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def encode_certificate(certificate: x509.Certificate) -> str:
    """Encode a certificate as PEM."""
    return certificate.public_bytes(serialization.Encoding.PEM).decode()


def encode_private_key(key: ec.EllipticCurvePrivateKey) -> str:
    """Encode a certificate's private key as PEM, without a password."""
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    ).decode()


@dataclass(frozen=True)
class EnrolledBoard:
    """A board's name, when its enrolment expires, and the clients that it may hold."""

    name: str
    until: datetime
    clients: tuple[str, ...] = ()  # none: any


class CertificateStore:
    """Stores boards' certificates: enrolled ones in ``boards/``, revoked ones in ``revoked/``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.enrolled_folder, self.revoked_folder = folder / "boards", folder / "revoked"

    def create_folders(self) -> None:
        """Create the folders of enrolled and revoked certificates."""
        for folder in (self.folder, self.enrolled_folder, self.revoked_folder):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)

    def add(self, name: str, certificate: str) -> None:
        """Store the certificate of a new board; raise ConfigError if the board is already enrolled."""
        path = self._certificate_path(name)
        temporary = self.folder / f".{read_serial_number(certificate)}.pem"
        write_atomically(temporary, certificate.encode(), private=True)
        with translate_disk_errors(path):
            try:
                path.hardlink_to(temporary)  # if two commands do this at the same time, one fails
            except FileExistsError:
                raise ConfigError(
                    f"{name} is already enrolled; to replace its file:"
                    f" heterophony broker revoke {name} {self.folder}, then enrol it again"
                ) from None
            finally:
                temporary.unlink()
            sync_folder(self.enrolled_folder)

    def remove(self, name: str) -> None:
        """Delete a board's certificate whose key was never handed out."""
        self._certificate_path(name).unlink()

    def revoke(self, name: str) -> None:
        """Move a board's certificate to the revoked ones; raise ConfigError if it is not enrolled."""
        path = self._certificate_path(name)
        names = [board.name for board in self.list_enrolled()]
        if name not in names:
            raise ConfigError(
                f"{name} is not enrolled in {self.folder}{suggest_similar(name, names)}"
            )
        with translate_disk_errors(path):
            path.rename(self.revoked_folder / f"{name}.{read_serial_number(path.read_text())}.pem")
            sync_folder(self.revoked_folder)

    def list_enrolled(self) -> list[EnrolledBoard]:
        """Return all enrolled boards, sorted by name."""
        return [
            EnrolledBoard(path.stem, read_certificate_expiry(text), read_certificate_clients(text))
            for path, text in read_certificates(self.enrolled_folder)
        ]

    def list_revoked_certificates(self) -> list[str]:
        """Return all revoked certificates as PEM."""
        return [text for _, text in read_certificates(self.revoked_folder)]

    def list_revoked_names(self) -> set[str]:
        """Return all names that were ever revoked, including names that were enrolled again later."""
        return {path.stem.rpartition(".")[0] for path, _ in read_certificates(self.revoked_folder)}

    def _certificate_path(self, name: str) -> Path:
        """Return the file of an enrolled board's certificate."""
        return self.enrolled_folder / f"{name}.pem"


def read_certificates(folder: Path) -> list[tuple[Path, str]]:
    """Return all certificates in a folder, sorted by file name."""
    with translate_disk_errors(folder):
        certificates = [(path, path.read_text()) for path in sorted(folder.iterdir())]
    for path, text in certificates:
        try:
            read_certificate_expiry(text)
        except ValueError:
            raise FolderError(f"{path} is damaged: it is not a certificate") from None
    return certificates


class EnrolledClients:
    """Checks which clients boards may have, by the enrolments in the broker's folder at that time."""

    def __init__(self, broker_folder: Path) -> None:
        self.store = CertificateStore(broker_folder)

    @property
    def can_be_read(self) -> bool:
        """Whether the broker's folder is on this machine."""
        return self.store.enrolled_folder.is_dir()

    def find_serial_number(self, board: str) -> str | None:
        """Return the serial number of the board's certificate; None if it is not enrolled here."""
        try:
            return read_serial_number((self.store.enrolled_folder / f"{board}.pem").read_text())
        except (OSError, ValueError):
            return None

    def find_objection(self, board: str, clients: Collection[str], total: int) -> str:
        """Return why a board may not have these of a run's ``total`` clients; an empty string if it may."""
        by_board = {}
        if self.can_be_read:
            by_board = {d.name: d.clients for d in self.store.list_enrolled()}
            if board not in by_board:
                return f"board '{board}' is no longer enrolled"
        if own := by_board.get(board, ()):
            foreign = sorted(set(clients) - set(own))
            return f"its enrolment does not name client '{foreign[0]}'" if foreign else ""
        for other, named in sorted(by_board.items()):
            if taken := sorted(set(clients) & set(named)):
                return f"client '{taken[0]}' is named by the enrolment of board '{other}'"
        if len(clients) >= total > 1:
            return (
                f"it claims all {total} clients of the run; a board may hold them all only if its"
                " enrolment names them (heterophony broker enrol --clients)"
            )
        return ""
